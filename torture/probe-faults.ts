// Inside a process under test: counts the hits of probes and lets the next planned fault happen at its place.

import { installProbe, type ProbeName, resetConnections } from 'pawl/testing'
import { markOwn } from '../packages/pawl/src/db/classify.ts'
import type { ControlClient } from './control.ts'
import { type PlannedFault, purposeOf } from './faults.ts'
import type { History } from './history.ts'

export interface FaultSite {
  readonly slot: string
  readonly faults: readonly PlannedFault[]
  readonly history: History
  readonly control: ControlClient
}

export function installFaults({ slot, faults, history, control }: FaultSite): void {
  if (faults.length === 0) return
  let next = 0
  let hits = 0
  installProbe(async (name) => {
    const fault = faults[next]
    if (fault === undefined || fault.probe !== name || control.isHealed || ++hits < fault.hit) return
    next++
    hits = 0
    // Written before it happens: after a kill nobody could. The number of lines tells the supervisor which fault is next.
    history.write('fault', { slot, probe: name, hit: fault.hit, kind: fault.kind, ms: fault.ms })
    await fire(fault, name, { slot, control })
  })
}

async function fire(
  fault: PlannedFault,
  probe: ProbeName,
  { slot, control }: Pick<FaultSite, 'slot' | 'control'>,
): Promise<void> {
  const { pid } = process
  switch (fault.kind) {
    case 'kill':
      process.kill(pid, 'SIGKILL')
      return new Promise(() => undefined)
    case 'reset':
      resetConnections()
      // The keeper's thread loses its own connections, a process every one it has: also those that its handlers opened by themselves.
      return slot.endsWith(' keeper') ? undefined : control.ask({ slot, pid, what: 'reset' })
    case 'sql-40001':
      // As if a statement of ours had failed there: the same from a handler is the handler's failure.
      throw markOwn(Object.assign(new Error('could not serialize access (planned)'), { code: '40001' }))
    case 'block':
      return blockFor(fault.ms ?? 2000)
    case 'commit-unknown':
      return control.ask({ slot, pid, what: 'commit-unknown', purpose: purposeOf[probe] ?? 'engine' })
    default:
      return control.ask({ slot, pid, what: fault.kind, ...(fault.ms === undefined ? {} : { ms: fault.ms }) })
  }
}

function blockFor(ms: number): void {
  const until = performance.now() + ms
  while (performance.now() < until);
}

// Plays one case of the matrix: a process that meets the fault at its probe, a worker that does not, and jobs of every shape. After the
// fault everything must come to rest.

import { readHistory } from '../history.ts'
import { calmPlan } from '../plan.ts'
import type { Rig } from '../rig.ts'
import type { Case, CaseEnd, MatrixStage } from '../scenario.ts'
import { aims } from './aims.ts'
import type { Provocation } from './cases.ts'
import { isAtRest } from './rest.ts'
import { Workload } from './workload.ts'

const reachMs = 20_000
const restMs = 30_000
const roundsMax = 12

const shapes: readonly [kind: string, count: number, more: object][] = [
  ['tx', 4, { ms: 5 }],
  ['shared', 4, {}],
  ['complete', 3, { ms: 5 }],
  ['outside', 4, { ms: 10 }],
  ['flaky', 2, { failures: 1 }],
  ['slow', 1, { ms: 300 }],
  ['snoozing', 1, {}],
]

export async function openStage(rig: Rig, seed: number): Promise<MatrixStage> {
  const workload = await Workload.open(rig, calmPlan({ name: 'jobs', aims }, seed))
  await rig.startProcess('w2', { concurrency: 4 })
  return {
    play: (each, index) => play(rig, workload, each, index),
    close: () => workload.close(),
  }
}

async function play(rig: Rig, workload: Workload, { probe, kind, hit, provocation }: Case, index: number): Promise<CaseEnd> {
  const slot = `m${index}`
  const fault = { probe, kind, hit }
  const isReached = () =>
    kind === 'commit-unknown'
      ? readHistory(rig.dir, 'rig').some((entry) => entry.op === 'answer lost' && entry.slot === slot)
      : readHistory(rig.dir, slot).some((entry) => entry.op === 'fault')
  await enqueueShapes(workload, `${index}/0`)
  const way = provocation.startsWith('enqueue') ? (provocation.includes('without') ? 'plain' : 'own') : undefined
  await rig.startProcess(slot, {
    concurrency: 4,
    ...(way === undefined ? {} : { role: 'producer', how: way }),
    ...(probe.startsWith('keeper.') ? { keeperFaults: [fault] } : { faults: [fault] }),
  })
  await rig.until(() => readHistory(rig.dir, slot).some((entry) => entry.op === 'started') || isReached(), reachMs)
  for (let round = 1; round < roundsMax && !isReached(); round++) {
    await provoke(rig, workload, { slot, hit, provocation: provocation as Provocation, key: `${index}/${round}` })
    await rig.until(isReached, provocation === 'work' || provocation === 'burst' ? 2500 : 5000)
  }
  const ended = { isReached: isReached() }
  // A producer goes on for ever, and only then there is an end to wait for.
  if (way !== undefined) {
    const isOrderly = await rig.stopProcess(slot)
    return { ...ended, isOrderly, isAtRest: await rig.until(() => isAtRest(rig), restMs) }
  }
  const rested = await rig.until(() => isAtRest(rig), restMs)
  return { ...ended, isAtRest: rested, isOrderly: await rig.stopProcess(slot) }
}

interface Provoking {
  readonly slot: string
  readonly hit: number
  readonly provocation: Provocation
  readonly key: string
}

async function provoke(rig: Rig, workload: Workload, { slot, hit, provocation, key }: Provoking): Promise<void> {
  switch (provocation) {
    case 'stop':
      return enqueueBacklog(rig, workload, slot, key)
    case 'burst':
      return enqueueMany(workload, key, 200, {})
    case 'pause':
      return rig.pause(slot)
    case 'death of another':
      await enqueueShapes(workload, key)
      rig.signal('w2', 'SIGKILL')
      return
    default:
      // The other worker takes its share: a later hit wants more of everything.
      for (let time = 0; time < hit; time++) await enqueueShapes(workload, `${key}/${time}`)
  }
}

async function enqueueShapes(workload: Workload, key: string): Promise<void> {
  for (const [shape, count, more] of shapes) {
    const batch = `${key}/${shape}`
    await workload.enqueueOwn(
      batch,
      shape,
      Array.from({ length: count }, (_, item) => ({ ...more, key: `${batch}/${item}` })),
    )
  }
}

async function enqueueMany(workload: Workload, key: string, count: number, more: { ms?: number }): Promise<void> {
  await workload.enqueueOwn(
    key,
    'outside',
    Array.from({ length: count }, (_, item) => ({ ...more, key: `${key}/${item}` })),
  )
}

/** More than it can run at once, so that it has something to give back when it is told to stop. */
async function enqueueBacklog(rig: Rig, workload: Workload, slot: string, key: string): Promise<void> {
  await enqueueMany(workload, key, 60, { ms: 60 })
  const starts = () => readHistory(rig.dir, slot).filter((entry) => entry.op === 'start').length
  const before = starts()
  await rig.until(() => starts() > before + 6, 5000)
  rig.signal(slot, 'SIGTERM')
}

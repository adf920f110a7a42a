// Plays one case of a matrix: a process that meets the fault at its probe, beside one that does not. After the fault everything must come
// to rest.

import { readHistory } from '../history.ts'
import type { Rig } from '../rig.ts'
import type { Case, CaseEnd } from '../scenario.ts'
import type { Provocation } from './crash-cases.ts'
import type { EventTraffic } from './traffic.ts'

const reachMs = 20_000
const restMs = 30_000
const roundsMax = 12

export interface Playing {
  readonly index: number
  readonly isAtRest: () => Promise<boolean>
  /** Something for the process to do. */
  readonly provoke: (round: number, slot: string) => Promise<void>
}

export async function playCase(rig: Rig, traffic: EventTraffic, each: Case, playing: Playing): Promise<CaseEnd> {
  const { probe, kind, hit } = each
  const provocation = each.provocation as Provocation
  const slot = `m${playing.index}`
  const isReached = () =>
    kind === 'commit-unknown'
      ? readHistory(rig.dir, 'rig').some((entry) => entry.op === 'answer lost' && entry.slot === slot)
      : readHistory(rig.dir, slot).some((entry) => entry.op === 'fault')
  const faults = [{ probe, kind, hit }]
  if (provocation === 'append') await traffic.startWriter(slot, faults, 'append')
  else if (provocation === 'rebuild') await rig.startProcess(slot, { role: 'operator', faults })
  else await rig.startProcess(slot, { faults })
  await rig.until(() => readHistory(rig.dir, slot).some((entry) => entry.op === 'started') || isReached(), reachMs)
  for (let round = 0; round < roundsMax && !isReached(); round++) {
    await playing.provoke(round, slot)
    await rig.until(isReached, 2500)
  }
  const ended = { isReached: isReached() }
  // Whoever appends goes on for ever, and only then there is an end to wait for.
  if (provocation === 'append' || provocation === 'rebuild') {
    const isOrderly = await rig.stopProcess(slot)
    return { ...ended, isOrderly, isAtRest: await rig.until(playing.isAtRest, restMs) }
  }
  const rested = await rig.until(playing.isAtRest, restMs)
  return { ...ended, isAtRest: rested, isOrderly: await rig.stopProcess(slot) }
}

// Plays one case of the matrix: a process that meets the fault at its probe, a worker that does not, files for every place, and a reader
// who looks meanwhile. After the fault everything must come to rest.

import { readHistory } from '../history.ts'
import { calmPlan } from '../plan.ts'
import type { Rig } from '../rig.ts'
import type { Case, CaseEnd, MatrixStage } from '../scenario.ts'
import type { Actor } from './actor.ts'
import { aims } from './aims.ts'
import { isUsers } from './cases.ts'
import { isAtRest } from './rest.ts'
import { keyOf, type Marked, type Place, places } from './sets.ts'
import { RecordsTraffic } from './traffic.ts'

const restMs = 40_000
const roundsMax = 10
const roundMs = 4000
/** Four chunks, so that there is a middle. */
const rowsOfFile = 55

export async function openStage(rig: Rig, seed: number): Promise<MatrixStage> {
  const traffic = await RecordsTraffic.open(rig, calmPlan({ name: 'records', aims }, seed))
  await rig.startProcess('w2', { concurrency: 2 })
  return {
    play: (each, index) => play(rig, traffic, each, index),
    close: () => traffic.close(),
  }
}

async function play(rig: Rig, traffic: RecordsTraffic, { probe, kind, hit, provocation }: Case, index: number): Promise<CaseEnd> {
  const slot = `m${index}`
  const isReached = () =>
    kind === 'commit-unknown'
      ? readHistory(rig.dir, 'rig').some((entry) => entry.op === 'answer lost' && entry.slot === slot)
      : readHistory(rig.dir, slot).some((entry) => entry.op === 'fault')
  const faults = [{ probe, kind, hit }]
  const user = isUsers(provocation)
  await rig.startProcess(slot, user ? { role: 'client', how: `${provocation} ${index}`, faults } : { concurrency: 2, faults })
  for (let round = 0; round < roundsMax && !isReached(); round++) {
    if (!user) await sendFiles(traffic.actor, `${index}/${round}`, provocation === 'doomed files')
    await rig.until(async () => {
      await traffic.actor.read(places[round % places.length]!)
      return isReached() || (!user && (await isAtRest(rig)))
    }, roundMs)
  }
  const ended = { isReached: isReached() }
  // Users go on for ever, and only then there is an end to wait for.
  const stopped = user ? await rig.stopProcess(slot) : undefined
  for (const place of places) await traffic.freeSlot(place)
  const rested = await rig.until(() => isAtRest(rig), restMs)
  for (const place of places) await traffic.actor.read(place)
  return { ...ended, isAtRest: rested, isOrderly: stopped ?? (await rig.stopProcess(slot)) }
}

/** One file for each place at once: whoever is there applies them. */
async function sendFiles(actor: Actor, key: string, isRefused: boolean): Promise<void> {
  await Promise.all(
    places.map(async (at: Place) => {
      const name = `${key}/${at.place}`
      const rows = Array.from({ length: rowsOfFile }, (_, row): Marked => [keyOf(row), name])
      if (isRefused) rows[rows.length - 1] = [keyOf(rowsOfFile - 1), `${name}!`]
      const upload = await actor.upload({ key: name, at, rows })
      if (upload?.state === 'validated') await actor.submit(upload.id, upload.revision)
    }),
  )
}

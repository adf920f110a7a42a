// The stories of projections. Without a canary each of them is clean.

import { endLease } from 'pawl/testing'
import { keys, transaction } from '../events/transactions.ts'
import { readHistory } from '../history.ts'
import { calmPlan } from '../plan.ts'
import type { Rig } from '../rig.ts'
import type { Story } from '../scenario.ts'
import { aims, operatorSlot } from './aims.ts'
import { foldedName, shardedName } from './handlers.ts'
import { isAtRest } from './rest.ts'
import { ProjectionTraffic } from './traffic.ts'

interface ProjectionStory extends Omit<Story, 'play'> {
  play(rig: Rig, traffic: ProjectionTraffic): Promise<void>
}

const patienceMs = 20_000
/** All that there are before a rebuild. */
const cursors = 8

const told: readonly ProjectionStory[] = [
  {
    name: 'killed before the commit',
    tells: 'A process is killed when its handlers have run and nothing is committed, and another goes on.',
    async play(rig, traffic) {
      for (const key of keys.slice(0, 4)) await traffic.writer.write(transaction(`${key}/1`, key, 3))
      await rig.startProcess('w1', { faults: [{ probe: 'projections.batch.handled', hit: 2, kind: 'kill' }] })
      await rig.until(() => wrote(rig, 'fault') > 0, patienceMs)
      await traffic.observe()
      await rig.startProcess('w2')
    },
  },
  {
    name: 'late holder',
    tells: 'A process hangs before it applies; its lease ends, another applies everything, and then it goes on where it was.',
    async play(rig, traffic) {
      // Blocked and not stopped: when it goes on, its move is the very next thing it does.
      await rig.startProcess('w1', { faults: [{ probe: 'projections.batch.before', hit: 1, kind: 'block', ms: 4000 }] })
      await rig.until(() => wrote(rig, 'acquired') >= cursors, patienceMs)
      await writeSome(traffic, 'before')
      await rig.until(() => wrote(rig, 'fault') > 0, patienceMs)
      await takeOver(rig)
      await writeSome(traffic, 'after')
    },
  },
  {
    name: 'late holder of a quiet log',
    tells: 'Nothing is to be done when the lease of a process ends and another takes over; then events come, one at a time.',
    async play(rig, traffic) {
      await rig.startProcess('w1')
      await rig.until(() => wrote(rig, 'acquired') >= cursors, patienceMs)
      await writeSome(traffic, 'before')
      await rig.until(() => isAtRest(rig), patienceMs)
      await takeOver(rig)
      for (let time = 0; time < 4; time++) {
        await writeSome(traffic, `after ${time}`)
        await rig.until(() => isAtRest(rig), 500)
      }
    },
  },
  {
    name: 'parked and mended',
    tells: 'A bad event of each of a few keys is parked, more come behind it, and then somebody mends the cause.',
    async play(rig, traffic) {
      await Promise.all([rig.startProcess('w1'), rig.startProcess('w2')])
      const some = keys.slice(0, 4)
      for (const key of some) await traffic.writer.write(transaction(`${key}/1`, key, 2, { isBad: true }))
      await rig.until(
        async () => (await count(rig, 'select count(*)::integer as n from pawl.parked_key')) >= some.length * 3,
        patienceMs,
      )
      for (const key of keys) await traffic.writer.write(transaction(`${key}/2`, key, 3))
      await rig.until(
        async () => (await count(rig, 'select count(*)::integer as n from pawl.parked_event')) >= some.length * 3 * 4,
        5000,
      )
    },
  },
  {
    name: 'nobody runs yet',
    tells: 'Somebody waits for what it wrote while no process runs, and again when one does.',
    async play(rig, traffic) {
      for (let time = 0; time < 3; time++) await traffic.readOwnWrite(200)
      await rig.startProcess('w1')
      for (let time = 0; time < 5; time++) await traffic.readOwnWrite(10_000)
    },
  },
  {
    name: 'rebuilt and switched',
    tells: 'A generation is built beside the live one, made live, and the old one retired, while others append.',
    async play(rig, traffic) {
      await Promise.all([rig.startProcess('w1'), rig.startProcess('w2')])
      for (const key of keys) await traffic.writer.write(transaction(`${key}/1`, key, 10))
      const applied = `select count(*)::integer as n from torture.applied where name = '${foldedName}'`
      await rig.until(async () => (await count(rig, applied)) >= 120, patienceMs)
      await rig.startProcess(operatorSlot, { role: 'operator', how: 'rebuild' })
      for (let time = 0; time < 20 && wrote(rig, 'retired') === 0; time++) {
        await traffic.writer.write(transaction(`more/${time}`, 'k1', 2))
        await rig.until(() => wrote(rig, 'retired') > 0, 300)
      }
      await rig.stopProcess(operatorSlot)
    },
  },
  {
    name: 'rolled back while the live one stands',
    tells: 'The live generation is paused, events come, and the one before it becomes live again.',
    async play(rig, traffic) {
      await Promise.all([rig.startProcess('w1'), rig.startProcess('w2')])
      for (const key of keys) await traffic.writer.write(transaction(`${key}/1`, key, 10))
      await rig.startProcess(operatorSlot, { role: 'operator', how: 'roll back' })
      await rig.until(() => wrote(rig, 'paused') > 0, patienceMs)
      for (const key of keys) await traffic.writer.write(transaction(`${key}/2`, key, 10))
      await rig.until(() => wrote(rig, 'rolled back') > 0, patienceMs)
      await rig.stopProcess(operatorSlot)
    },
  },
  {
    name: 'parked while switched',
    tells:
      'A key is parked in both generations when the new one becomes live; what its events let out is let out when it is mended.',
    async play(rig, traffic) {
      await Promise.all([rig.startProcess('w1'), rig.startProcess('w2')])
      await traffic.writer.write(transaction('good', 'k1', 3))
      // Its first event is the fourth of its key, which is answered by the projection.
      await traffic.writer.write(transaction('bad', 'k1', 2, { isBad: true }))
      const parked = `select count(*)::integer as n from pawl.parked_event where name = '${foldedName}'`
      await rig.until(async () => (await count(rig, parked)) >= 2, patienceMs)
      await rig.startProcess(operatorSlot, { role: 'operator', how: 'rebuild' })
      await rig.until(() => wrote(rig, 'retired') > 0, patienceMs)
      await rig.stopProcess(operatorSlot)
    },
  },
]

export const stories: readonly Story[] = told.map((story) => ({
  ...story,
  async play(rig) {
    const traffic = await ProjectionTraffic.open(rig, calmPlan({ name: 'projections', aims }, 1))
    try {
      await story.play(rig, traffic)
    } finally {
      await traffic.close()
    }
  },
}))

async function writeSome({ writer }: ProjectionTraffic, name: string): Promise<void> {
  for (const key of keys.slice(0, 4)) await writer.write(transaction(`${name}/${key}`, key, 3))
}

/** The lease of w1 ends, and w2 has everything that it held. */
async function takeOver(rig: Rig): Promise<void> {
  const [held] = await rig.query<{ holder: number }>(`select holder from pawl.cursor where name = '${shardedName}' limit 1`)
  await rig.startProcess('w2')
  await rig.until(() => readHistory(rig.dir, 'w2').some(({ op }) => op === 'started'), patienceMs)
  await endLease(rig.admin, held!.holder)
  const left = `select count(*)::integer as n from pawl.cursor where holder = ${held!.holder}`
  await rig.until(async () => (await count(rig, left)) === 0, patienceMs)
}

function wrote(rig: Rig, op: string): number {
  return readHistory(rig.dir).filter((entry) => entry.op === op).length
}

async function count(rig: Rig, text: string): Promise<number> {
  const [row] = await rig.query<{ n: number }>(text)
  return row!.n
}

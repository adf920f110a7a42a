// The stories of outbox. Without a canary each of them is clean.

import { Ingester } from '../events/ingester.ts'
import { EventTraffic } from '../events/traffic.ts'
import { keys, transaction } from '../events/transactions.ts'
import { readHistory } from '../history.ts'
import { calmPlan } from '../plan.ts'
import { stream } from '../random.ts'
import type { Rig } from '../rig.ts'
import type { Story } from '../scenario.ts'
import { aims } from './aims.ts'

interface OutboxStory extends Omit<Story, 'play'> {
  play(rig: Rig, traffic: EventTraffic): Promise<void>
}

const patienceMs = 20_000

const told: readonly OutboxStory[] = [
  {
    name: 'late committer',
    tells: 'A transaction appends first and commits last.',
    async play(rig, { writer }) {
      await rig.startProcess('w1')
      const late = await writer.open(transaction('late', 'k1', 2))
      await late.fill()
      await writer.write(transaction('early', 'k2', 2))
      await rig.until(async () => (await head(rig)) >= 2, patienceMs)
      await late.end()
    },
  },
  {
    name: 'stranger stays',
    tells: "A stranger's transaction stays open while others append and are delivered.",
    async play(rig, traffic) {
      await rig.startProcess('w1')
      await traffic.writer.write(transaction('first', 'k3', 1))
      await rig.until(async () => (await head(rig)) >= 1, patienceMs)
      for (let time = 0; time < 3; time++) await traffic.holdOpen()
    },
  },
  {
    name: 'busy ticks',
    tells: 'Two processes give positions while another appends as fast as it can.',
    async play(rig, traffic) {
      await Promise.all([rig.startProcess('w1'), rig.startProcess('w3')])
      await traffic.startWriter('p1')
      await rig.until(async () => (await head(rig)) >= 200, patienceMs)
      await rig.stopProcess('p1')
      await traffic.endPrepared(0)
    },
  },
  {
    name: 'second writer began first',
    tells: 'Of two writers of one key the second to commit was the first to begin, and one tick meets both.',
    async play(rig, { writer }) {
      // The very first tick looks at everything there is; this is about those that follow.
      await rig.startProcess('w1')
      await writer.write(transaction('zeroth', 'k1', 1))
      await rig.until(async () => (await head(rig)) === 1, patienceMs)
      await rig.stopProcess('w1')
      const second = await writer.open(transaction('second', 'k1', 1, { isEarly: true }))
      await writer.write(transaction('first', 'k1', 1))
      await second.fill()
      await second.end()
      await rig.startProcess('w2')
    },
  },
  {
    name: 'plain deliveries',
    tells: 'Two processes deliver a few transactions; nothing goes wrong.',
    async play(rig, { writer }) {
      await Promise.all([rig.startProcess('w1'), rig.startProcess('w2')])
      for (let batch = 0; batch < 12; batch++) {
        await writer.write(transaction(`batch ${batch}`, `k${1 + (batch % 3)}`, 5))
        await rig.until(async () => (await head(rig)) >= (batch + 1) * 5, 1000)
      }
    },
  },
  {
    name: 'source in parts',
    tells: 'What a source says in one of its transactions is brought in two calls, and once more as a whole.',
    async play(rig, { writer }) {
      await rig.startProcess('w1')
      const ingester = new Ingester(writer.pawl, rig.history)
      const random = stream(1, 'ingests')
      for (let time = 0; time < 10; time++) await ingester.step(random)
    },
  },
  {
    name: 'killed in a call',
    tells: 'A process is killed while it hands over the events of one key, and another goes on.',
    async play(rig, { writer }) {
      for (let batch = 0; batch < 4; batch++) await writer.write(transaction(`batch ${batch}`, 'k1', 10))
      await rig.startProcess('w1', { faults: [{ probe: 'projections.sink.handled', hit: 20, kind: 'kill' }] })
      await rig.until(() => readHistory(rig.dir).some(({ op }) => op === 'fault'), patienceMs)
      await rig.startProcess('w2')
    },
  },
  {
    name: 'parked and mended',
    tells: 'A bad event of each of a few keys is parked, many come behind it, and then somebody mends the cause of all of them at once.',
    async play(rig, { writer }) {
      await rig.startProcess('w1')
      const parked = 'select count(*)::integer as n from pawl.parked_event'
      for (const key of keys) await writer.write(transaction(`${key}/1`, key, 1, { isBad: true }))
      await rig.until(async () => (await count(rig, parked)) >= keys.length, patienceMs)
      for (const key of keys) await writer.write(transaction(`${key}/2`, key, 10))
      await rig.until(async () => (await count(rig, parked)) >= keys.length * 11, patienceMs)
    },
  },
  {
    name: 'batch fails once',
    tells: 'A serialization failure ends a batch when its handlers have run; it is applied again.',
    async play(rig, { writer }) {
      for (const key of ['k1', 'k2', 'k3', 'k4']) await writer.write(transaction(key, key, 5))
      await rig.startProcess('w1', { faults: [{ probe: 'projections.batch.handled', hit: 1, kind: 'sql-40001' }] })
      await rig.until(() => readHistory(rig.dir).some(({ op }) => op === 'fault'), patienceMs)
    },
  },
]

export const stories: readonly Story[] = told.map((story) => ({
  ...story,
  async play(rig) {
    const traffic = await EventTraffic.open(rig, calmPlan({ name: 'outbox', aims }, 1))
    try {
      await story.play(rig, traffic)
    } finally {
      await traffic.close()
    }
  },
}))

async function head(rig: Rig): Promise<number> {
  const [row] = await rig.query<{ head: string }>('select position as head from pawl.sequencer')
  return Number(row!.head)
}

async function count(rig: Rig, text: string): Promise<number> {
  const [row] = await rig.query<{ n: number }>(text)
  return row!.n
}

// The stories of records. Without a canary each of them is clean.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Submission } from 'pawl'
import { readHistory } from '../history.ts'
import { calmPlan } from '../plan.ts'
import type { Rig } from '../rig.ts'
import type { Story } from '../scenario.ts'
import type { Actor } from './actor.ts'
import { aims } from './aims.ts'
import { chunkRows, isDoomed, keyOf, type Marked, type Place, places } from './sets.ts'
import { RecordsTraffic } from './traffic.ts'

interface Stage {
  readonly rig: Rig
  readonly traffic: RecordsTraffic
  readonly actor: Actor
}

interface RecordsStory extends Omit<Story, 'play'> {
  play(stage: Stage): Promise<void>
}

const patienceMs = 20_000
const here: Place = places[0]!
/** Four chunks. */
const rowsMax = 4 * chunkRows

const told: readonly RecordsStory[] = [
  {
    name: 'undisturbed',
    tells: 'Two workers apply files to every place, with puts and appends between them; nothing goes wrong.',
    async play({ rig, actor }) {
      await Promise.all([rig.startProcess('w1'), rig.startProcess('w2')])
      for (const [index, at] of places.entries()) {
        await applied(actor, at, `first ${index}`, rows(`first ${index}`))
        await actor.read(at, { pageRows: 17 })
        await actor.put(at, keyOf(3), `put ${index}`, (await actor.numberOf(at, keyOf(3)))!, index === 0)
        await actor.append(at, `append ${index}`, [
          [keyOf(4), `append ${index}`],
          [keyOf(5), null],
          [keyOf(99), `append ${index}`],
        ])
        await actor.read(at)
        await applied(actor, at, `second ${index}`, rows(`second ${index}`, 40))
        await actor.read(at)
        await actor.read(at, { asOf: '2' })
      }
    },
  },
  {
    name: 'applier killed',
    tells: 'A worker is killed after its second chunk, and another goes on behind it.',
    async play({ rig, actor }) {
      await submitted(actor, here, 'file', rows('file'))
      await rig.startProcess('w1', { faults: [{ probe: 'records.apply.chunk', hit: 2, kind: 'kill' }] })
      await rig.until(() => wrote(rig, 'fault') > 0, patienceMs)
      await rig.startProcess('w2')
      await actor.read(here)
    },
  },
  {
    name: 'zombie applier',
    tells:
      'A worker is stopped before a chunk, another takes its job over and stands before the same chunk, and then it wakes up.',
    async play({ rig, actor }) {
      await submitted(actor, here, 'file', rows('file'))
      await rig.startProcess('w1', { faults: [{ probe: 'records.apply.before', hit: 2, kind: 'pause' }] })
      await rig.until(() => wrote(rig, 'fault') > 0, patienceMs)
      // Blocked and not stopped: its lease goes on.
      await rig.startProcess('w2', { faults: [{ probe: 'records.apply.before', hit: 1, kind: 'block', ms: 4000 }] })
      await rig.until(() => wrote(rig, 'refused') > 0, 8000)
    },
  },
  {
    name: 'read between chunks',
    tells: 'A worker stands before the last chunk of a submission while somebody reads.',
    async play({ rig, actor }) {
      await actor.append(here, 'before', rows('before', 10))
      await submitted(actor, here, 'file', rows('file'))
      await rig.startProcess('w1', { faults: [{ probe: 'records.apply.before', hit: 4, kind: 'block', ms: 2500 }] })
      await rig.until(() => wrote(rig, 'fault') > 0, patienceMs)
      for (let time = 0; time < 5; time++) {
        await actor.read(here)
        await sleep(100)
      }
    },
  },
  {
    name: 'racing puts',
    tells: 'Six people put the same record at once, each on top of the same version.',
    async play({ actor }) {
      await actor.append(here, 'before', rows('before', 3))
      for (let round = 0; round < 8; round++) {
        const number = await actor.numberOf(here, keyOf(1))
        await Promise.all(
          Array.from({ length: 6 }, (_, one) => actor.put(here, keyOf(1), `put ${round} ${one}`, number!, one === 0)),
        )
      }
      await actor.read(here)
    },
  },
  {
    name: 'same file after a failure',
    tells:
      'A file is uploaded while the same one with a row that is refused is half applied; that one fails, and then it is submitted.',
    async play({ rig, actor }) {
      await actor.append(here, 'before', rows('before'))
      const first = await submitted(actor, here, 'refused', doomedRows('mark'))
      await rig.startProcess('w1', { faults: [{ probe: 'records.apply.chunk', hit: 2, kind: 'block', ms: 2500 }] })
      await rig.until(() => wrote(rig, 'fault') > 0, patienceMs)
      const second = await actor.upload({ key: 'again', at: here, rows: doomedRows('mark').slice(0, -1) })
      await actor.ended(first.id, patienceMs)
      await actor.submit(second!.id, second!.revision)
      await actor.ended(second!.id, patienceMs)
      await actor.read(here)
    },
  },
  {
    name: 'failed twice',
    tells: 'A submission fails, is resumed and fails again; somebody resumes it who saw it when it had failed once.',
    async play({ rig, traffic, actor }) {
      await rig.startProcess('w1')
      const { id } = await submitted(actor, here, 'refused', doomedRows('mark'))
      await actor.ended(id, patienceMs)
      const once = (await actor.pawl.records.get(id)).revision
      await actor.resume(id, once)
      await actor.ended(id, patienceMs)
      await actor.resume(id, once)
      await actor.ended(id, patienceMs)
      await traffic.mend(id)
      await actor.resume(id, (await actor.pawl.records.get(id)).revision)
      await actor.ended(id, patienceMs)
      await actor.read(here)
    },
  },
  {
    name: 'after a failure',
    tells: 'A submission is given up after three chunks, somebody puts a record, and somebody reads.',
    async play({ rig, actor }) {
      await actor.append(here, 'before', rows('before', 10))
      await rig.startProcess('w1')
      const { id } = await submitted(actor, here, 'refused', doomedRows('mark'))
      await actor.ended(id, patienceMs)
      await actor.put(here, keyOf(1), 'put', (await actor.numberOf(here, keyOf(1)))!)
      await actor.read(here)
    },
  },
  {
    name: 'killed in the commit',
    tells: 'A worker is killed when everything of a commit is written and nothing is committed.',
    async play({ rig, actor }) {
      const { id } = await submitted(actor, here, 'file', rows('file'))
      await rig.startProcess('w1', { faults: [{ probe: 'records.commit.written', hit: 1, kind: 'kill' }] })
      await rig.until(() => wrote(rig, 'fault') > 0, patienceMs)
      await actor.read(here)
      await actor.ended(id, patienceMs)
      await actor.read(here)
    },
  },
  {
    name: 'two submitters',
    tells: 'Two files for one place are submitted at once.',
    async play({ rig, actor }) {
      const uploads = await Promise.all(
        ['one', 'two'].map((key, index) => actor.upload({ key, at: here, rows: rows(key, 20 + index) })),
      )
      await Promise.all(uploads.map((upload) => actor.submit(upload!.id, upload!.revision)))
      await rig.startProcess('w1')
      for (const upload of uploads) await actor.ended(upload!.id, 8000)
    },
  },
  {
    name: 'started over twice',
    tells:
      'Whoever starts a broken upload over is stopped before the old rows are cleared; another starts it over too and submits, and then the first wakes up.',
    async play({ rig, actor }) {
      const faults = [{ probe: 'records.restart.committed', hit: 1, kind: 'pause' }] as const
      await rig.startProcess('c1', { role: 'client', how: 'restart 1', faults })
      await rig.until(() => wrote(rig, 'fault') > 0, patienceMs)
      const asked = readHistory(rig.dir, 'c1').find((entry) => entry.op === 'upload' && entry.restart !== undefined)!
      const at = { set: String(asked.set), place: String(asked.place) } as Place
      const restart = String(asked.restart)
      const sound = (asked.rows as Marked[]).filter(([, mark]) => !isDoomed(mark))
      const upload = await actor.upload({ key: String(asked.key), at, rows: sound, restart })
      await actor.submit(upload!.id, upload!.revision)
      const isLost = () => readHistory(rig.dir, 'c1').some(({ op, code }) => op === 'upload' && code === 'PAWL_LEASE_LOST')
      await rig.until(isLost, patienceMs)
      await rig.stopProcess('c1')
      await rig.startProcess('w1')
      await actor.ended(upload!.id, patienceMs)
      await actor.read(at)
    },
  },
  {
    name: 'moved baseline',
    tells: 'A record is put between the upload of a file and its submit; the file is compared anew and submitted then.',
    async play({ rig, actor }) {
      await actor.append(here, 'before', rows('before', 10))
      const upload = await actor.upload({ key: 'file', at: here, rows: rows('file', 20) })
      await actor.put(here, keyOf(1), 'put', (await actor.numberOf(here, keyOf(1)))!)
      await actor.submit(upload!.id, upload!.revision)
      const rebased = await actor.rebase(upload!.id)
      if (rebased !== undefined) await actor.submit(rebased.id, rebased.revision)
      await rig.startProcess('w1')
      await actor.ended(rebased?.id ?? upload!.id, 8000)
      await actor.read(here)
    },
  },
]

export const stories: readonly Story[] = told.map((story) => ({
  ...story,
  async play(rig) {
    const traffic = await RecordsTraffic.open(rig, calmPlan({ name: 'records', aims }, 1))
    try {
      await story.play({ rig, traffic, actor: traffic.actor })
    } finally {
      await traffic.close()
    }
  },
}))

function rows(mark: string, count = rowsMax): Marked[] {
  return Array.from({ length: count }, (_, index) => [keyOf(index), mark])
}

/** The last row is refused for good. */
function doomedRows(mark: string): Marked[] {
  return rows(mark).map((row, index) => (index === rowsMax - 1 ? [row[0], `${mark}!`] : row))
}

async function submitted(actor: Actor, at: Place, key: string, file: readonly Marked[]): Promise<Submission> {
  const upload = await actor.upload({ key, at, rows: file })
  await actor.submit(upload!.id, upload!.revision)
  return upload!
}

async function applied(actor: Actor, at: Place, key: string, file: readonly Marked[]): Promise<void> {
  const { id } = await submitted(actor, at, key, file)
  await actor.ended(id, patienceMs)
}

function wrote(rig: Rig, op: string): number {
  return readHistory(rig.dir).filter((entry) => entry.op === op).length
}

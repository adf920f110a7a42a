// A process of users: they upload files, look at the preview, submit, put single records, append deltas, and send again what broke off.
// What it is told: `storm SEED` for everything, or the one thing that a case of the matrix wants.

import { setTimeout as sleep } from 'node:timers/promises'
import { readHistory } from '../history.ts'
import { underTest } from '../under-test.ts'
import { Actor } from './actor.ts'
import { canaries } from './canaries.ts'
import { bulkPlace, type Marked, places } from './sets.ts'
import { User } from './user.ts'

const usersInStorm = 2

const { options, proc, history, logger } = underTest(canaries)
const [role = '', seed = '1'] = options.how.split(' ')
const actor = new Actor({ url: options.url, name: proc, history, logger })
const users = Array.from(
  { length: role === 'storm' ? usersInStorm : 1 },
  (_, index) => new User(actor, `${proc}.${index}`, Number(seed)),
)
const stop = new AbortController()
process.on('SIGTERM', () => stop.abort())
history.write('started', { pid: process.pid })

if (options.start > 1) await sendAgain()
await Promise.all(users.map(live))
history.write('stopped', { stillRunning: [] })
await actor.close()
process.exit(0)

async function live(user: User): Promise<void> {
  while (!stop.signal.aborted) {
    // Whatever a fault does to one turn, the next is another one.
    await user.act(role).catch((error: unknown) => logger.error({ error: String(error) }, 'a turn failed'))
    await sleep(user.random.whole(5, 40), undefined, { signal: stop.signal }).catch(() => undefined)
  }
}

/** What the last start of this process was sending when it died: sent again, under the same submission. */
async function sendAgain(): Promise<void> {
  const uploads = new Map(
    readHistory(options.dir, options.slot)
      .filter((entry) => entry.op === 'upload' && entry.ph === 'invoke')
      .map((entry) => [String(entry.key), entry]),
  )
  for (const at of [...places, bulkPlace]) {
    const open = await actor
      .scope(at)
      .submissions({ limit: 20 })
      .catch(() => [])
    for (const { id, name, state } of open) {
      const entry = uploads.get(name ?? '')
      if (entry === undefined || !['uploading', 'validating', 'upload-failed'].includes(state)) continue
      const asked = { key: String(entry.key), at, rows: entry.rows as Marked[], isBad: entry.isBad === true }
      await users[0]!.send({ ...asked, restart: id })
    }
  }
}

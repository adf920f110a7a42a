// A process that does nothing but enqueue, in the way it is told or in both by turns, and meets its faults between its insert and its
// commit.

import { setTimeout as sleep } from 'node:timers/promises'
import { underTest } from '../under-test.ts'
import { canaries } from './canaries.ts'
import { Enqueuer, type Way } from './enqueuer.ts'

const everyMs = 150
const ways: readonly Way[] = ['own', 'plain']

const { options, proc, history, logger } = underTest(canaries)
const enqueuer = new Enqueuer({ url: options.url, name: proc, history, logger })
const stop = new AbortController()
process.on('SIGTERM', () => stop.abort())
history.write('started', { pid: process.pid })

for (let batch = 0; !stop.signal.aborted; batch++) {
  const key = `${proc}/${batch}`
  const way = options.how === 'both' ? ways[batch % 2]! : (options.how as Way)
  await enqueuer.enqueue(way, { key, kind: 'tx', payloads: [{ key: `${key}/0` }, { key: `${key}/1` }] })
  await sleep(everyMs, undefined, { signal: stop.signal }).catch(() => undefined)
}
history.write('stopped', { stillRunning: [] })
await enqueuer.close()
process.exit(0)

// A process that does nothing but append, several transactions at once, and meets its faults between its append and its commit.

import { setTimeout as sleep } from 'node:timers/promises'
import { stream } from '../random.ts'
import { underTest } from '../under-test.ts'
import { Ingester } from './ingester.ts'
import { planted } from './planted.ts'
import { drawTransaction } from './transactions.ts'
import { Writer } from './writer.ts'

const loops = 3
const everyMs = [10, 70] as const
const backlogMax = 400

const { options, proc, history, logger } = underTest(planted)
const writer = new Writer({ url: options.url, name: proc, history, logger })
const ingester = new Ingester(writer.pawl, history)
const stop = new AbortController()
process.on('SIGTERM', () => stop.abort())
history.write('started', { pid: process.pid })

/** `how`: the seed, and which way if it is only one. */
const [seed, way] = options.how.split(' ')
const random = (name: string) => stream(Number(seed), `${proc} ${name}`)

/** Events that are not worked on yet, as far as is known; so that a storm does not end as a backlog. */
let backlog = 0
async function lookAtBacklog(): Promise<void> {
  while (!stop.signal.aborted) {
    backlog = await writer.backlog().catch(() => 0)
    await pause(300)
  }
}

async function pause(ms: number): Promise<void> {
  await sleep(ms, undefined, { signal: stop.signal }).catch(() => undefined)
}

async function write(loop: number): Promise<void> {
  const drawn = random(`writes ${loop}`)
  for (let n = 0; !stop.signal.aborted; n++) {
    const transaction = drawTransaction(drawn, `${proc}/${loop}/${n}`)
    await writer.write(way === undefined ? transaction : { ...transaction, way: way as 'append', ending: 'commit' })
    await pause(drawn.whole(...everyMs))
    while (backlog > backlogMax && !stop.signal.aborted) await pause(50)
  }
}

async function ingest(): Promise<void> {
  const drawn = random('ingests')
  while (!stop.signal.aborted) {
    await ingester.step(drawn)
    await pause(drawn.whole(30, 120))
  }
}

await Promise.all([...Array.from({ length: loops }, (_, loop) => write(loop)), ingest(), lookAtBacklog()])
history.write('stopped')
await writer.close()
process.exit(0)

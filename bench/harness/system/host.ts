// Runs in the process of a system under test: loads one file of peers/ and answers the calls of the benchmark.

import { now, pause } from '../machine/clock.ts'
import type { Answer, Call, FromChild, Peer, Progress, Setup, Stamp, Started, Via, Work } from './protocol.ts'

const [module, variant] = process.argv.slice(2)
const progressMs = 20

let handled = 0
let firstAt = 0
let expected = Number.POSITIVE_INFINITY
let isStamping = false
let countsMemory = false

const started: Started = (n) => {
  if (handled === 0) firstAt = now()
  handled += 1
  if (isStamping) send({ stamp: n, at: now() } satisfies Stamp)
  if (handled === expected) sendProgress()
}

function sendProgress(): void {
  send({ progress: { handled, firstAt, rss: countsMemory ? process.memoryUsage.rss() : undefined } satisfies Progress })
}

function send(message: FromChild): void {
  if (process.connected) process.send!(message)
}

const loaded = (await import(`../../peers/${module}.ts`)) as {
  open(started: Started, variant: string | undefined): Peer | Promise<Peer>
}
let peer: Peer | undefined

function given<Name extends keyof Peer>(name: Name): NonNullable<Peer[Name]> {
  const method = peer?.[name]
  if (method === undefined) throw new Error(`${module} has no ${name}`)
  return (method as (...args: never[]) => unknown).bind(peer) as NonNullable<Peer[Name]>
}

const verbs: Record<string, (...args: never[]) => Promise<unknown>> = {
  async prepare(setup: Setup) {
    peer ??= await loaded.open(started, variant)
    await peer.prepare(setup)
  },
  fill: (count: number) => given('fill')(count),
  async work(work: Work, expect: number) {
    expected = expect
    countsMemory = work.countsMemory ?? false
    isStamping = work.handler === 'stamp' || work.handler === 'hang'
    // A process that has all the jobs tells when it has started the last one. Of several, each tells now and then how far it is.
    if (expect < 0 || countsMemory) setInterval(sendProgress, progressMs).unref()
    await given('work')(work)
    return now()
  },
  async waitEmpty() {
    while ((await given('remaining')()) > 0) await pause(1)
    return now()
  },
  async bulk(count: number, callSize: number) {
    const from = now()
    await given('bulk')(count, callSize)
    return now() - from
  },
  /** Keeps so many calls in flight until all are answered. */
  async oneByOne(count: number, inFlight: number, via: Via) {
    const enqueue = given('enqueue')
    let next = 0
    const lane = async () => {
      while (next < count) await enqueue(next++, via)
    }
    const from = now()
    await Promise.all(Array.from({ length: inFlight }, lane))
    return now() - from
  },
  async enqueue(n: number, via: Via) {
    const at = now()
    return (await given('enqueue')(n, via)) ?? at
  },
  load: (durationMs: number) => given('load')(durationMs),
  run: (task: string, ...args: readonly unknown[]) => given('run')(task, ...args),
  rss: async () => process.memoryUsage.rss(),
  close: async () => peer?.close?.(),
}

async function answer({ id, verb, args }: Call): Promise<Answer> {
  try {
    return { id, value: await verbs[verb]!(...(args as never[])) }
  } catch (error) {
    return {
      id,
      error: error instanceof Error ? `${error.message}\n${error.stack?.split('\n').slice(1).join('\n')}` : String(error),
    }
  }
}

process.on('message', (call: Call) => void answer(call).then(send))
process.on('disconnect', () => process.exit(0))

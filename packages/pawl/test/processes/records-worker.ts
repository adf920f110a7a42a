// A worker for records in a process of its own, for tests that kill or stop it. Its argument is a RecordsSpec as JSON. It says one JSON object
// a line on stdout, and hears words on stdin: `go` lets it go on from where it holds, `stop` drains and ends.

import { createInterface } from 'node:readline'
import { createPawl, type RecordSetOptions, type WorkerOptions } from 'pawl'
import { installProbe, type ProbeName } from 'pawl/testing'

export interface RecordsSpec {
  readonly url: string
  readonly sets: Readonly<Record<string, RecordSetOptions>>
  readonly worker?: WorkerOptions
  /** It kills itself when it comes to this probe for the given time. */
  readonly killAt?: { readonly probe: ProbeName; readonly hit: number }
  /** It says `holding` there and waits for the word `go`. */
  readonly holdAt?: { readonly probe: ProbeName; readonly hit: number }
  /** It stops itself there with SIGSTOP. Once continued, it sends its next statement before it hears of anything that happened since. */
  readonly stopAt?: { readonly probe: ProbeName; readonly hit: number }
  /** It runs no worker: it uploads this many rows, and submits them if told; or it appends them, under a once key. */
  readonly upload?: {
    readonly set: string
    readonly scope: Readonly<Record<string, string>>
    readonly rows: number
    readonly restart?: string
    readonly submits?: boolean
    readonly once?: string
  }
}

export type RecordsSaid =
  | { readonly event: 'ready' | 'stopped' | 'uploaded' }
  | { readonly event: 'killing' | 'holding' | 'stopping'; readonly probe: ProbeName }
  | { readonly event: 'job.refused' | 'worker.lost'; readonly detail: unknown }

const spec = JSON.parse(process.argv[2]!) as RecordsSpec
// Writes to a pipe are synchronous here, so what was said before a kill is heard.
const say = (said: RecordsSaid) => process.stdout.write(`${JSON.stringify(said)}\n`)

let go: () => void = () => undefined
const going = new Promise<void>((resolve) => {
  go = resolve
})
const hits = new Map<ProbeName, number>()

if (spec.killAt !== undefined || spec.holdAt !== undefined || spec.stopAt !== undefined) {
  installProbe((name) => {
    const hit = (hits.get(name) ?? 0) + 1
    hits.set(name, hit)
    if (name === spec.holdAt?.probe && hit === spec.holdAt.hit) {
      say({ event: 'holding', probe: name })
      return going
    }
    if (name === spec.stopAt?.probe && hit === spec.stopAt.hit) {
      say({ event: 'stopping', probe: name })
      return void process.kill(process.pid, 'SIGSTOP')
    }
    if (name !== spec.killAt?.probe || hit !== spec.killAt.hit) return
    say({ event: 'killing', probe: name })
    process.kill(process.pid, 'SIGKILL')
    // The signal arrives at once; nothing of ours may run until it does.
    for (;;);
  })
}

const pawl = createPawl({ databaseUrl: spec.url })
for (const [name, options] of Object.entries(spec.sets)) pawl.records.define(name, options)
for (const name of ['job.refused', 'worker.lost'] as const) pawl.on(name, (detail) => say({ event: name, detail }))
const worker = pawl.worker(spec.worker ?? { lease: '60s', tuning: { beatMs: 200, pollMs: 100 } })

createInterface({ input: process.stdin }).on('line', (word) => {
  if (word === 'go') go()
  else if (word === 'stop') void stop()
})
// The parent is gone and cannot stop this process.
process.stdin.on('end', () => process.exit(1))

if (spec.upload === undefined) await worker.start()
say({ event: 'ready' })
if (spec.upload !== undefined) await upload(spec.upload)

async function upload({ set, scope, rows, restart, once, submits = false }: NonNullable<RecordsSpec['upload']>): Promise<void> {
  const ids = Array.from({ length: rows }, (_, index) => `row-${index}`)
  const there = pawl.records.in(set, scope)
  if (once !== undefined) {
    const appended = ids.map((rowId) => ({ data: { rowId, note: 'sent' } }))
    return void (await there.append(appended, { once }).then(() => say({ event: 'uploaded' })))
  }
  const lines = ids.map((id) => `${id},sent\n`)
  const { id } = await there.upload(['rowId,note\n', ...lines], { format: 'csv', ...(restart !== undefined && { restart }) })
  if (submits) await pawl.records.submit(id)
  say({ event: 'uploaded' })
}

async function stop(): Promise<void> {
  await worker.stop()
  say({ event: 'stopped' })
  await pawl.close()
  process.exit(0)
}

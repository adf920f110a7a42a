// Pawl with its default settings: a process that takes uploads and, unless it is the variant 'uploader', also runs a worker.

import { createReadStream } from 'node:fs'
import { createPawl, type Pawl, type RecordScope, type RecordSet, type Submission } from 'pawl'
import { now, pause } from '../../harness/machine/clock.ts'
import type { Sample } from '../../harness/rounds.ts'
import type { Peer, Setup } from '../../harness/system/protocol.ts'
import { type Stoppable, startWorker } from '../worker.ts'
import { loads } from './rows.ts'
import { pageReads, pageRows, scattered, times, wholeReads } from './times.ts'

const megabyte = 1_048_576

export function open(_started: unknown, variant: string | undefined): Peer {
  let pawl: Pawl
  let set: RecordSet
  let scope: RecordScope
  let worker: Stoppable | undefined

  async function finished(id: string): Promise<void> {
    for (;;) {
      const { state } = await pawl.records.get(id)
      if (state === 'submitted') return
      if (state !== 'submitting') throw new Error(`the submission is ${state}`)
      await pause(5)
    }
  }

  /** All phases, from the first byte to the commit. The preview is its counts and the first page of what is created and of what is updated. */
  async function submit(file: string): Promise<Sample> {
    const memory = watchMemory()
    const from = now()
    const submission: Submission = await scope.upload(createReadStream(file), { format: 'csv' })
    if (submission.state !== 'validated') throw new Error(`the upload is ${submission.state}: ${submission.error}`)
    const uploaded = now()
    for (const kind of ['created', 'updated'] as const) await pawl.records.rows(submission.id, kind)
    const previewed = now()
    await pawl.records.submit(submission.id, { revision: submission.revision })
    await finished(submission.id)
    const to = now()
    return {
      value: to - from,
      upload: uploaded - from,
      preview: previewed - uploaded,
      apply: to - previewed,
      changes: submission.progress.of,
      ...memory(),
    }
  }

  const tasks: Readonly<Record<string, (...args: never[]) => Promise<unknown>>> = {
    submit,
    upload: (file: string, registration: string) =>
      pawl.records.in(set, { registration }).upload(createReadStream(file), { format: 'csv' }),
    'submit id': (id: string) => pawl.records.submit(id),
    reads: (rows: number, asOf: string) => reads(scope, rows, asOf),
  }

  return {
    async prepare({ url }: Setup) {
      pawl = createPawl({ databaseUrl: url })
      await pawl.migrate()
      set = pawl.records.define('loads', loads)
      scope = pawl.records.in(set, { registration: '1' })
      // A service that takes uploads is connected.
      await scope.state()
      if (variant === 'uploader') return
      worker = await startWorker(pawl, 'jobs')
    },
    run: (task: string, ...args: readonly unknown[]) => tasks[task]!(...(args as never[])),
    async close() {
      await worker?.stop()
      await pawl.close()
    },
  }
}

/** From now on; gives the idle and the highest RSS. */
function watchMemory(): () => { idleMb: number; memoryMb: number } {
  const idle = process.memoryUsage.rss()
  let peak = idle
  const look = () => {
    peak = Math.max(peak, process.memoryUsage.rss())
  }
  const timer = setInterval(look, 20)
  return () => {
    clearInterval(timer)
    look()
    return { idleMb: idle / megabyte, memoryMb: (peak - idle) / megabyte }
  }
}

async function reads(scope: RecordScope, rows: number, asOf: string): Promise<Sample> {
  const places: string[] = []
  for (let after = (await scope.list({ limit: pageRows })).next; after !== null; ) {
    places.push(after)
    after = (await scope.list({ limit: pageRows, after })).next
  }
  // Behind the last place is nothing.
  places.pop()
  const page = await times(pageReads, async (n) => {
    const { items } = await scope.list({ limit: pageRows, after: scattered(places, n) })
    if (items.length !== pageRows) throw new Error(`a page has ${items.length} records`)
  })
  return {
    page,
    scope: await times(wholeReads, () => readAll(scope, rows)),
    asOf: await times(wholeReads, () => readAll(scope, rows, asOf)),
  }
}

/** In pages of the largest size. */
async function readAll(scope: RecordScope, rows: number, number?: string): Promise<void> {
  let after: string | undefined
  let seen = 0
  do {
    const page = await scope.list({
      limit: 10_000,
      ...(after === undefined ? {} : { after }),
      ...(number === undefined ? {} : { at: { number } }),
    })
    seen += page.items.length
    after = page.next ?? undefined
  } while (after !== undefined)
  if (seen !== rows) throw new Error(`${seen} of ${rows} records were read`)
}

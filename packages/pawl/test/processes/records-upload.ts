// Uploads and applies many rows in a process of its own, so that its memory can be measured. Its argument is JSON; it says one JSON object.

import { createReadStream } from 'node:fs'
import { createPawl, type RecordSetOptions, type Submission } from 'pawl'
import { xlsx } from 'pawl/records/xlsx'
import { until } from './wait.ts'

export interface UploadSpec {
  readonly url: string
  readonly rows: number
  /** One row in this many has another value than the first time. */
  readonly changeEvery?: number
  /** CSV unless told. */
  readonly format?: 'csv' | 'ndjson' | 'json'
  /** A file with these rows, sent in place of a CSV. */
  readonly workbook?: string
}

export interface UploadSaid {
  readonly submission: Submission
  /** Rows that progress showed, in order, while it was uploaded; and changes, while it was applied. */
  readonly staged: readonly number[]
  readonly applied: readonly number[]
  readonly memoryMb: number
  readonly uploadMs: number
  readonly applyMs: number
}

const fields = 30
const set: RecordSetOptions = {
  scope: ['registration'],
  formats: [xlsx()],
  types: {
    load: {
      key: 'rowId',
      columns: Object.fromEntries([
        ['rowId', 'text'],
        ...Array.from({ length: fields - 1 }, (_, n) => [`field${n}`, n % 3 === 0 ? 'number' : 'text']),
      ]) as Record<string, 'text' | 'number'>,
    },
  },
  tuning: { chunkRows: 5000 },
}

const spec = JSON.parse(process.argv[2]!) as UploadSpec
const { format = 'csv' } = spec
const pawl = createPawl({ databaseUrl: spec.url })
const scope = pawl.records.in(pawl.records.define('wide', set), { registration: '1' })
const worker = pawl.worker({ tuning: { pollMs: 100 } })
await worker.start()

// A small one first: what is loaded and compiled once is not what is measured.
const warm = pawl.records.in('wide', { registration: 'warm' })
await warm.upload(body(200), { format })
globalThis.gc?.()
const idleBytes = process.memoryUsage().rss
let peakBytes = idleBytes
const watch = setInterval(() => {
  peakBytes = Math.max(peakBytes, process.memoryUsage().rss)
}, 20)

const staged: number[] = []
const started = performance.now()
const onProgress = ({ lines }: { lines: number }) => void staged.push(lines)
const upload =
  spec.workbook === undefined
    ? await scope.upload(body(spec.rows), { format, onProgress })
    : await scope.upload(createReadStream(spec.workbook), { format: 'xlsx', onProgress })
const uploaded = performance.now()
await pawl.records.submit(upload.id)
const applied: number[] = []
const submission = await until(async () => {
  const now = await pawl.records.get(upload.id)
  if (now.progress.applied !== applied.at(-1)) applied.push(now.progress.applied)
  return now.state === 'submitting' ? undefined : now
})
const ended = performance.now()
clearInterval(watch)
await worker.stop()
await pawl.close()
const said: UploadSaid = {
  submission,
  staged,
  applied,
  memoryMb: (peakBytes - idleBytes) / 1_048_576,
  uploadMs: uploaded - started,
  applyMs: ended - uploaded,
}
process.stdout.write(`${JSON.stringify(said)}\n`)

/** Made as it is read, 100 rows at a time: the file is never in memory. */
function* body(rows: number): Generator<string> {
  const names = ['rowId', ...Array.from({ length: fields - 1 }, (_, n) => `field${n}`)]
  if (format === 'csv') yield `${names.join(',')}\n`
  if (format === 'json') yield '['
  for (let from = 0; from < rows; from += 100) {
    const texts: string[] = []
    for (let row = from; row < Math.min(from + 100, rows); row++)
      texts.push(
        format === 'csv'
          ? cells(row).join(',')
          : JSON.stringify(Object.fromEntries(cells(row).map((cell, n) => [names[n], cell]))),
      )
    yield `${format === 'json' && from > 0 ? ',' : ''}${texts.join(format === 'json' ? ',' : '\n')}${format === 'json' ? '' : '\n'}`
  }
  if (format === 'json') yield ']'
}

function cells(row: number): string[] {
  const isChanged = spec.changeEvery !== undefined && row % spec.changeEvery === 0
  const field = (n: number) =>
    n % 3 === 0 ? `${row * 7 + n}.25` : `value ${n} of ${isChanged && n === 1 ? 'changed ' : ''}${row} xxxxxxxx`
  return [`row-${row}`, ...Array.from({ length: fields - 1 }, (_, n) => field(n))]
}

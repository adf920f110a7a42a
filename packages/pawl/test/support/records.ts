// Record sets, rows and processes for the tests of records.

import { type ChildProcess, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import type { Pawl, RecordScope, RecordSet, RecordSetOptions, Submission, Worker } from 'pawl'
import { inject, onTestFinished } from 'vitest'
import type { RecordsSaid, RecordsSpec } from '../processes/records-worker.ts'
import { stopBeforeDrop, type TestDatabase, until } from './database.ts'

export const loads: RecordSetOptions = {
  scope: ['organisation', 'registration'],
  types: {
    load: {
      key: 'rowId',
      columns: {
        rowId: 'text',
        date: 'date',
        material: 'text',
        tonnes: { type: 'number', min: 0 },
        isExport: 'boolean',
        note: 'text',
      },
    },
  },
}

export function defineLoads(pawl: Pawl, more: Partial<RecordSetOptions> = {}): RecordSet {
  return pawl.records.define('loads', { ...loads, ...more })
}

export interface LoadRow {
  readonly rowId: string
  readonly date?: string
  readonly material?: string
  readonly tonnes?: string
  readonly isExport?: string
  readonly note?: string
}

const materials = ['paper', 'glass', 'steel', 'wood']

export function loadRows(count: number, change: (row: LoadRow, index: number) => LoadRow = (row) => row): LoadRow[] {
  return Array.from({ length: count }, (_, index) =>
    change(
      {
        rowId: `row-${index}`,
        date: `2026-01-${String((index % 28) + 1).padStart(2, '0')}`,
        material: materials[index % materials.length]!,
        tonnes: `${index}.5`,
        isExport: index % 3 === 0 ? 'true' : 'false',
        note: `note ${index}`,
      },
      index,
    ),
  )
}

export function csv(rows: readonly LoadRow[]): string[] {
  const columns = ['rowId', 'date', 'material', 'tonnes', 'isExport', 'note'] as const
  const cell = (text = '') => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text)
  return [`${columns.join(',')}\n`, ...rows.map((row) => `${columns.map((column) => cell(row[column])).join(',')}\n`)]
}

export function ndjson(rows: readonly unknown[]): string[] {
  return rows.map((row) => `${JSON.stringify(row)}\n`)
}

/** Everything that a reader sees of a scope, now or as of a number: one digest over keys and data, and how many records there are. */
export async function readerView(scope: RecordScope, at?: { number: string }): Promise<{ count: number; digest: string }> {
  const hash = createHash('sha256')
  let count = 0
  let after: string | undefined
  do {
    const page = await scope.list({ limit: 1000, ...(at && { at }), ...(after === undefined ? {} : { after }) })
    for (const { type, key, data, status } of page.items) {
      hash.update(JSON.stringify([type, key, data, status]))
      count++
    }
    after = page.next ?? undefined
  } while (after !== undefined)
  return { count, digest: hash.digest('hex') }
}

/** A worker in the test's own process. Nobody waits for the end of its lease. */
export async function startWorker(pawl: Pawl): Promise<Worker> {
  const worker = pawl.worker({ lease: '30s', tuning: { beatMs: 200, pollMs: 100 } })
  stopBeforeDrop(pawl, worker)
  onTestFinished(async () => void (await worker.stop({ grace: 5000 })))
  await worker.start()
  return worker
}

export async function ended(pawl: Pawl, id: string, timeoutMs = 60_000): Promise<Submission> {
  return until(
    `submission ${id} has ended`,
    async () => {
      const submission = await pawl.records.get(id)
      return submission.state === 'submitting' ? undefined : submission
    },
    timeoutMs,
  )
}

/** Cancels every job of a tenant, as a program with SQL can: no verb of the library does it to jobs of Pawl's own. */
export async function cancelJobs(db: TestDatabase, tenant = ''): Promise<void> {
  await db.query('select pawl.cancel_jobs($1, array(select j.id from pawl.job j where j.tenant = $1))', [tenant])
}

/** Makes the process's sweep run now: a submission that changes nothing is committed, in a set of its own. */
export async function sweepNow(pawl: Pawl): Promise<void> {
  const set = pawl.records.define('swept', { scope: ['n'], types: { row: { key: 'id', columns: { id: 'text' } } } })
  const { id } = await pawl.records.in(set, { n: '1' }).upload('[]', { format: 'json' })
  await pawl.records.submit(id)
}

/** Uploads, submits and waits. */
export async function submitted(
  pawl: Pawl,
  scope: RecordScope,
  body: Iterable<string>,
  format: 'csv' | 'ndjson' = 'csv',
): Promise<Submission> {
  const upload = await scope.upload(body, { format })
  if (upload.state !== 'validated')
    throw new Error(`The upload is ${upload.state}: ${JSON.stringify(await pawl.records.errors(upload.id))}`)
  await pawl.records.submit(upload.id, { revision: upload.revision })
  return ended(pawl, upload.id)
}

const root = fileURLToPath(new URL('../../../../', import.meta.url))

/** A worker for records in a process of its own, which can kill itself at a probe. */
export class RecordsProcess {
  readonly said: RecordsSaid[] = []
  readonly #child: ChildProcess
  readonly #ended: Promise<unknown>
  #hasEnded = false
  #stderr = ''

  constructor(spec: RecordsSpec) {
    this.#child = spawn(process.execPath, ['--expose-gc', inject('programs')['records-worker'], JSON.stringify(spec)], {
      cwd: root,
      stdio: 'pipe',
    })
    this.#ended = once(this.#child, 'close').then(() => {
      this.#hasEnded = true
    })
    this.#child.stdin!.on('error', () => undefined)
    this.#child.stderr!.setEncoding('utf8').on('data', (text: string) => {
      this.#stderr = (this.#stderr + text).slice(-20_000)
    })
    createInterface({ input: this.#child.stdout! }).on('line', (line) => this.said.push(JSON.parse(line) as RecordsSaid))
    onTestFinished(() => this.kill())
  }

  async hears<Event extends RecordsSaid['event']>(
    event: Event,
    timeoutMs = 60_000,
  ): Promise<Extract<RecordsSaid, { event: Event }>> {
    const look = () => this.said.find((said) => said.event === event)
    await until(`a records process says '${event}'`, () => look() !== undefined || this.#hasEnded, timeoutMs)
    const said = look()
    if (said === undefined) throw new Error(`The process ended before it said '${event}': ${this.#stderr}`)
    return said as Extract<RecordsSaid, { event: Event }>
  }

  get pid(): number {
    return this.#child.pid!
  }

  get hasEnded(): boolean {
    return this.#hasEnded
  }

  async ended(): Promise<NodeJS.Signals | null> {
    await this.#ended
    return this.#child.signalCode
  }

  tell(word: string): void {
    this.#child.stdin!.write(`${word}\n`)
  }

  resume(): void {
    this.#child.kill('SIGCONT')
  }

  async kill(): Promise<void> {
    if (!this.#hasEnded) this.#child.kill('SIGKILL')
    await this.#ended
  }
}

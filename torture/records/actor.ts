// What a user of records does: uploads, submits, puts, appends, resumes, reads. Each act and its answer is written down; what was asked for
// before it is asked, so that a row that appears later can be told from one that came from nowhere.

import { createHash } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import {
  createPawl,
  type Format,
  isPawlError,
  type Logger,
  type Pawl,
  PawlError,
  type RecordScope,
  type Submission,
  silentLogger,
} from 'pawl'
import type pg from 'pg'
import type { History } from '../history.ts'
import { hardyPool } from '../pool.ts'
import { dataOf, defineSets, fileOf, type Marked, type Place } from './sets.ts'

export interface Seen {
  readonly number: string
  readonly marks: ReadonlyMap<string, string>
}

export interface UploadAsked {
  /** Names the submission in the histories and in its own row. */
  readonly key: string
  readonly at: Place
  readonly rows: readonly Marked[]
  readonly format?: Format
  readonly isBad?: boolean
  readonly restart?: string
  /** The connection breaks in the middle of it, the first time. */
  readonly breaksOff?: boolean
}

/** As much as arrives of a file whose sender goes away. */
function* halfOf(file: Iterable<string>): Generator<string> {
  const pieces = [...file]
  yield* pieces.slice(0, Math.ceil(pieces.length / 2))
  throw new Error('The sender of the file went away.')
}

/** Only this error leaves it open whether something happened: whoever gets another one may rely on it that nothing did. */
const isUnknown = (error: unknown): boolean => isPawlError(error, 'PAWL_COMMIT_UNKNOWN')

const failed = (error: unknown) => ({
  ph: isUnknown(error) ? 'info' : 'fail',
  code: isPawlError(error) ? error.code : undefined,
  error: String(error).slice(0, 300),
})

export class Actor {
  readonly pawl: Pawl
  readonly history: History
  readonly #pool: pg.Pool

  constructor(options: { url: string; name: string; history: History; logger?: Logger }) {
    const { url, name, history, logger = silentLogger } = options
    this.history = history
    this.pawl = createPawl({ databaseUrl: url, applicationName: name, logger, connectTimeoutMs: 5000, queryTimeoutMs: 10_000 })
    defineSets(this.pawl)
    this.#pool = hardyPool({ url, name: `${name} own`, max: 4 })
  }

  async close(): Promise<void> {
    await this.pawl.close()
    await this.#pool.end()
  }

  scope({ set, place }: Place): RecordScope {
    return this.pawl.records.in(set, { place })
  }

  /** Undefined: it did not arrive, also not when it was sent again. */
  async upload(asked: UploadAsked): Promise<Submission | undefined> {
    const { key, at, rows, format = 'csv', isBad = false, restart, breaksOff = false } = asked
    this.history.write('upload', { ph: 'invoke', key, ...at, rows, format, isBad, restart })
    try {
      const file = fileOf(rows, format, isBad)
      const upload = await this.scope(at).upload(breaksOff && restart === undefined ? halfOf(file) : file, {
        format,
        name: key,
        ...(restart === undefined ? {} : { restart }),
      })
      this.history.write('upload', { ph: 'ok', key, id: upload.id, state: upload.state, counts: upload.counts })
      return upload
    } catch (error) {
      this.history.write('upload', { ...failed(error), key })
      const id = isPawlError(error) ? error.details.id : undefined
      // A stream that broke is sent again under the same id, once.
      return restart === undefined && typeof id === 'string' && !isPawlError(error, 'PAWL_LEASE_LOST')
        ? this.upload({ ...asked, restart: id })
        : undefined
    }
  }

  /** What a person would look at before they agree. */
  async preview({ id, counts }: Submission): Promise<void> {
    const count = async (kind: 'created' | 'updated' | 'missing') =>
      (await this.pawl.records.rows(id, kind, { limit: 500 })).items.length
    try {
      const rows = { created: await count('created'), updated: await count('updated'), missing: await count('missing') }
      this.history.write('preview', { ph: 'ok', id, ...rows, counts })
    } catch (error) {
      this.history.write('preview', { ...failed(error), id })
    }
  }

  submit(id: string, revision: number): Promise<boolean> {
    return this.#take('submit', id, revision, () => this.pawl.records.submit(id, { revision }))
  }

  resume(id: string, revision: number): Promise<boolean> {
    return this.#take('resume', id, revision, () => this.pawl.records.resume(id, { revision }))
  }

  async #take(
    op: 'submit' | 'resume',
    id: string,
    named: number,
    work: () => Promise<{ revision: number; number: string; jobId: string | null }>,
  ): Promise<boolean> {
    this.history.write(op, { ph: 'invoke', id, named })
    try {
      const { revision, number, jobId } = await work()
      this.history.write(op, { ph: 'ok', id, named, revision, number, job: jobId })
      return true
    } catch (error) {
      this.history.write(op, { ...failed(error), id, named })
      return false
    }
  }

  async rebase(id: string): Promise<Submission | undefined> {
    this.history.write('rebase', { ph: 'invoke', id })
    try {
      const made = await this.pawl.records.rebase(id)
      this.history.write('rebase', { ph: 'ok', id, made: made.id, state: made.state })
      return made
    } catch (error) {
      this.history.write('rebase', { ...failed(error), id })
      return undefined
    }
  }

  /** Waits for the end of a submission, for so long. */
  async ended(id: string, patienceMs: number): Promise<string | undefined> {
    const deadline = performance.now() + patienceMs
    do {
      const found = await this.pawl.records.get(id).catch(() => undefined)
      if (found !== undefined && found.state !== 'submitting') {
        const at = { set: found.set, place: found.scope.place }
        this.history.write('ended', { ph: 'ok', id, ...at, state: found.state, number: found.number })
        return found.state
      }
      await sleep(30)
    } while (performance.now() < deadline)
    return undefined
  }

  // ---- single records

  /** '0': there is none. */
  async numberOf(at: Place, key: string): Promise<string | undefined> {
    try {
      const found = await this.scope(at).get('item', key)
      const number = found === undefined || found.status === 'DELETED' ? '0' : found.number
      this.history.write('get', { ph: 'ok', ...at, key, number, mark: found?.data?.mark ?? null, status: found?.status })
      return number
    } catch (error) {
      this.history.write('get', { ...failed(error), ...at, key })
      return undefined
    }
  }

  /** Only if the version that was seen is still current. In a transaction of the caller's own, a row of theirs is written beside it. */
  async put(at: Place, key: string, mark: string, number: string, isOwn = false): Promise<string | undefined> {
    const about = { ...at, key, mark, number, isOwn }
    this.history.write('put', { ph: 'invoke', ...about })
    try {
      const row = { type: 'item', data: dataOf(key, mark) }
      const answer = isOwn
        ? await this.#inOwn(mark, (tx) => this.scope(at).put(row, { number, by: mark, tx }))
        : await this.scope(at).put(row, { number, by: mark })
      this.history.write('put', { ph: 'ok', ...about, submission: answer.submission, given: answer.number })
      return answer.number
    } catch (error) {
      this.history.write('put', { ...failed(error), ...about })
      return undefined
    }
  }

  async append(at: Place, mark: string, rows: readonly Marked[]): Promise<string | undefined> {
    const about = { ...at, mark, rows }
    this.history.write('append', { ph: 'invoke', ...about })
    try {
      const { submission, number } = await this.scope(at).append(
        rows.map(([key, rowMark]) =>
          rowMark === null ? { type: 'item', key, data: null } : { type: 'item', data: dataOf(key, rowMark) },
        ),
        { by: mark },
      )
      this.history.write('append', { ph: 'ok', ...about, submission, given: number })
      return number
    } catch (error) {
      this.history.write('append', { ...failed(error), ...about })
      return undefined
    }
  }

  async #inOwn<Answer>(mark: string, work: (tx: pg.PoolClient) => Promise<Answer>): Promise<Answer> {
    const client = await this.#pool.connect()
    let isCommitting = false
    try {
      await client.query('begin')
      const answer = await work(client)
      await client.query('insert into torture.beside values ($1::text)', [mark])
      isCommitting = true
      await client.query('commit')
      client.release()
      return answer
    } catch (error) {
      // Whatever state it is in, its transaction ends with its connection.
      client.release(true)
      throw isCommitting ? new PawlError('PAWL_COMMIT_UNKNOWN', String(error), { cause: error }) : error
    }
  }

  // ---- reading

  /** Everything of a place, page by page; all pages are of one number. Written down as which marks were seen how often, and a digest. */
  async read(at: Place, options: { asOf?: string; pageRows?: number; pauseMs?: number } = {}): Promise<Seen | undefined> {
    const { asOf, pageRows = 1000, pauseMs = 0 } = options
    const began = Date.now()
    const rows: { key: string; mark: string; number: string; submission: string }[] = []
    let number: string | undefined
    let after: string | undefined
    try {
      do {
        const page = await this.scope(at).list({
          limit: pageRows,
          ...(asOf === undefined ? {} : { at: { number: asOf } }),
          ...(after === undefined ? {} : { after }),
        })
        for (const { key, data, number: version, submission } of page.items)
          rows.push({ key, mark: String(data?.mark), number: version, submission })
        // The first page says which commit this is; the others are pinned to it.
        number ??= page.items.length > 0 ? page.number : undefined
        after = page.next
        if (after !== undefined && pauseMs > 0) await sleep(pauseMs)
      } while (after !== undefined)
    } catch (error) {
      this.history.write('read', { ...failed(error), ...at, asOf })
      return undefined
    }
    const fold: Record<string, number> = {}
    for (const row of rows) fold[`${row.submission}@${row.number}`] = (fold[`${row.submission}@${row.number}`] ?? 0) + 1
    this.history.write('read', {
      ph: 'ok',
      ...at,
      asOf,
      number: number ?? '0',
      began,
      rows: rows.length,
      fold,
      digest: digestOf(rows),
    })
    return { number: number ?? '0', marks: new Map(rows.map((row) => [row.key, row.mark])) }
  }
}

/** What a reader sees of a place, as one text: each record with the version it is at and who wrote that. */
export function digestOf(
  rows: readonly { readonly key: string; readonly mark: string; readonly number: string; readonly submission: string }[],
): string {
  const lines = rows.map(({ key, mark, number, submission }) => `${key} ${mark} ${number} ${submission}`).sort()
  return createHash('sha256').update(lines.join('\n')).digest('hex').slice(0, 20)
}

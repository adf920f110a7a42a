// The record sets of a storm; what a user of records can do; the processes that apply submissions and of users; and around them an operator
// who mends, resumes, cancels and takes over, and a reader who reads at any moment.

import { createHash } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Format, isPawlError, type Pawl, type RecordScope, type RecordSetOptions, type Submission } from 'pawl'
import type pg from 'pg'
import { type Entry, readHistory } from '../history.ts'
import { serveJobs } from '../jobs/traffic.ts'
import { type Random, stream } from '../plan.ts'
import { Caller, type CallerOptions, inTransaction } from '../pool.ts'
import type { Subject } from '../process.ts'
import { Traffic } from '../scenario.ts'

// ---- sets

export const chunkRows = 15
/** How many keys a place has; a file names most of them, so it is applied in several chunks. */
const keysMax = 80
const bulkRows = 2600

const common = {
  scope: ['place'],
  types: { item: { key: 'rowId', columns: { rowId: 'text', mark: { type: 'text', required: true }, size: 'integer' } } },
  // A refused row that resembles a deadlock is given up soon.
  retry: { attempts: 4, initialMs: 10, maxMs: 100 },
  tuning: { chunkRows },
} as const satisfies RecordSetOptions

export const sets = {
  kept: { ...common, missing: 'keep', events: 'submission' },
  whole: { ...common, missing: 'tombstone', events: 'record' },
  bulk: { ...common, missing: 'keep', events: 'submission', tuning: { chunkRows: 900 } },
} as const satisfies Record<string, RecordSetOptions>

export type Place = { readonly set: keyof typeof sets; readonly place: string }

/** Several users race for each of these. */
export const places: readonly Place[] = [
  { set: 'kept', place: 'a' },
  { set: 'kept', place: 'b' },
  { set: 'kept', place: 'f' },
  { set: 'whole', place: 'c' },
  { set: 'whole', place: 'e' },
]
const bulkPlace: Place = { set: 'bulk', place: 'd' }

/** A row is its key and a mark, which names its writer; null deletes the record. */
export type Marked = readonly [key: string, mark: string | null]

/** The database refuses rows with such a mark until they are mended: '!' for good, '?' as if it were a deadlock. */
export const isDoomed = (mark: string | null): boolean => mark !== null && /[!?]$/.test(mark)

const dataOf = (key: string, mark: string) => ({ rowId: key, mark, size: String(mark.length) })

export const keyOf = (index: number): string => `k${String(index).padStart(4, '0')}`

function defineSets(pawl: Pawl): void {
  for (const [name, options] of Object.entries(sets)) pawl.records.define(name, options)
}

function* fileOf(rows: readonly Marked[], format: Format, isBad: boolean): Generator<string> {
  const records = rows.map(([key, mark]) => dataOf(key, mark!))
  if (isBad) records[records.length - 1]!.size = 'many'
  if (format === 'json') return yield JSON.stringify(records)
  if (format === 'csv') yield 'rowId,mark,size\n'
  const lineOf = (record: ReturnType<typeof dataOf>) => (format === 'csv' ? Object.values(record).join() : JSON.stringify(record))
  for (let from = 0; from < records.length; from += 50)
    yield `${records
      .slice(from, from + 50)
      .map(lineOf)
      .join('\n')}\n`
}

function* halfOf(file: Iterable<string>): Generator<string> {
  const pieces = [...file]
  yield* pieces.slice(0, Math.ceil(pieces.length / 2))
  throw new Error('The sender of the file went away.')
}

// ---- what a user can do

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

export type Seen = { readonly number: string; readonly marks: ReadonlyMap<string, string> }

/** Each act is written down before it is asked for, so a row that appears later can be told from one that came from nowhere. */
export class Actor extends Caller {
  constructor(options: CallerOptions) {
    super(options)
    defineSets(this.pawl)
  }

  scope({ set, place }: Place): RecordScope {
    return this.pawl.records.in(set, { place })
  }

  /** Undefined: it did not arrive, also not when it was sent again. */
  async upload(asked: UploadAsked): Promise<Submission | undefined> {
    const { key, at, rows, format = 'csv', isBad = false, restart, breaksOff = false } = asked
    const send = () => {
      const file = fileOf(rows, format, isBad)
      const options = { format, name: key, ...(restart === undefined ? {} : { restart }) }
      return this.scope(at).upload(breaksOff && restart === undefined ? halfOf(file) : file, options)
    }
    const once = { ...at, rows, isBad, restart }
    const { answer, error } = await this.history.call('upload', { key }, send, ({ id, state }) => ({ id, state }), once)
    const id = isPawlError(error) ? error.details.id : undefined
    // A stream that broke is sent again under the same id, once.
    const isSentAgain = restart === undefined && typeof id === 'string' && !isPawlError(error, 'PAWL_LEASE_LOST')
    return isSentAgain ? this.upload({ ...asked, restart: id }) : answer
  }

  /** The reads of a person before a submit. */
  async preview({ id, counts }: Submission): Promise<void> {
    const list = async (kind: 'created' | 'updated' | 'missing') =>
      (await this.pawl.records.rows(id, kind, { limit: 500 })).items.length
    const read = async () => [await list('created'), await list('updated'), await list('missing')]
    await this.history.call('preview', { id }, read, (listed) => ({ listed, counts }))
  }

  submit = (upload: Pick<Submission, 'id' | 'revision'>): Promise<boolean> => this.#take('submit', upload)
  resume = (upload: Pick<Submission, 'id' | 'revision'>): Promise<boolean> => this.#take('resume', upload)

  async #take(op: 'submit' | 'resume', { id, revision: named }: Pick<Submission, 'id' | 'revision'>): Promise<boolean> {
    const take = () => this.pawl.records[op](id, { revision: named })
    const { error } = await this.history.call(op, { id, named }, take, ({ revision, number }) => ({ revision, number }))
    return error === undefined
  }

  async rebase(id: string): Promise<Submission | undefined> {
    return (await this.history.call('rebase', { id }, () => this.pawl.records.rebase(id))).answer
  }

  /** Waits for the end of a submission, at most the given time. */
  async ended(id: string, patienceMs = 20_000): Promise<void> {
    for (const deadline = performance.now() + patienceMs; performance.now() < deadline; ) {
      const found = await this.pawl.records.get(id).catch(() => undefined)
      if (found !== undefined && found.state !== 'submitting') {
        const { set, scope, state, number } = found
        return this.history.write('ended', { ph: 'ok', id, set, place: scope.place, state, number })
      }
      await sleep(30)
    }
  }

  async numberOf(at: Place, key: string): Promise<string | undefined> {
    const get = async () => {
      const found = await this.scope(at).get('item', key)
      const number = found === undefined || found.status === 'DELETED' ? '0' : found.number
      return { number, mark: found?.data?.mark ?? null, status: found?.status }
    }
    return (await this.history.call('get', { ...at, key }, get, (found) => found)).answer?.number
  }

  /** Only if the version that was seen is still current. In a transaction of the caller's own, a row of theirs is written beside it. */
  async put(at: Place, key: string, mark: string, number: string, isOwn = false): Promise<void> {
    const row = { type: 'item', data: dataOf(key, mark) }
    const options = { number, by: mark }
    const inOwn = async (tx: pg.PoolClient) => {
      const answer = await this.scope(at).put(row, { ...options, tx })
      await tx.query('insert into torture.beside values ($1::text)', [mark])
      return answer
    }
    await this.history.call(
      'put',
      { ...at, key, mark, number, isOwn },
      () => (isOwn ? inTransaction(this.pool, inOwn) : this.scope(at).put(row, options)),
      ({ submission, number: given }) => ({ submission, given }),
    )
  }

  async append(at: Place, mark: string, rows: readonly Marked[]): Promise<void> {
    const sent = rows.map(([key, own]) => ({
      type: 'item',
      ...(own === null ? { key, data: null } : { data: dataOf(key, own) }),
    }))
    const append = () => this.scope(at).append(sent, { by: mark })
    await this.history.call('append', { ...at, mark, rows }, append, ({ submission, number: given }) => ({ submission, given }))
  }

  /** Everything of a place, page by page; all pages are of one number. Written down as a digest of what was seen. */
  async read(at: Place, options: { asOf?: string; pageRows?: number; pauseMs?: number } = {}): Promise<Seen | undefined> {
    const { asOf, pageRows: limit = 1000, pauseMs = 0 } = options
    const rows: Row[] = []
    const fold: Record<string, number> = {}
    const readAll = async () => {
      let number: string | undefined
      let after: string | undefined
      do {
        const pinned = asOf === undefined ? {} : { at: { number: asOf } }
        const page = await this.scope(at).list({ limit, ...pinned, ...(after === undefined ? {} : { after }) })
        for (const { key, data, number: version, submission } of page.items) {
          rows.push({ key, mark: String(data?.mark), number: version, submission })
          fold[`${submission}@${version}`] = (fold[`${submission}@${version}`] ?? 0) + 1
        }
        // The first page says which commit this is; the others are pinned to it.
        number ??= page.items.length > 0 ? page.number : undefined
        after = page.next ?? undefined
        if (after !== undefined && pauseMs > 0) await sleep(pauseMs)
      } while (after !== undefined)
      return number ?? '0'
    }
    const told = (number: string) => ({ number, rows: rows.length, fold, digest: digestOf(rows) })
    const { answer } = await this.history.call('read', { ...at, asOf, began: Date.now() }, readAll, told)
    return answer === undefined ? undefined : { number: answer, marks: new Map(rows.map(({ key, mark }) => [key, mark])) }
  }
}

type Row = { readonly key: string; readonly mark: string; readonly number: string; readonly submission: string }

/** What a reader sees of a place: each record with the version it is at and who wrote that. */
export function digestOf(rows: readonly Row[]): string {
  const lines = rows.map(({ key, mark, number, submission }) => `${key} ${mark} ${number} ${submission}`).sort()
  return createHash('sha256').update(lines.join('\n')).digest('hex').slice(0, 20)
}

// ---- processes

export async function worker(subject: Subject): Promise<void> {
  const { proc, options } = subject
  const { pawl } = new Caller(subject.caller(1))
  defineSets(pawl)
  const { leaseMs, beatMs, concurrency } = options
  await serveJobs(subject, pawl, { name: proc, lease: leaseMs, concurrency, tuning: { beatMs, pollMs: 200 } })
}

/** A process of users. It is told `storm SEED` for everything, or the one thing that a case of the matrix wants. */
export async function client(subject: Subject): Promise<void> {
  const { options, proc } = subject
  const [role = '', seed = '1'] = options.how.split(' ')
  const actor = new Actor(subject.caller(4, 10_000))
  const users = [0, 1].slice(0, role === 'storm' ? 2 : 1).map((one) => new Person(actor, `${proc}.${one}`, Number(seed)))
  /** What the last start of this process was sending when it died is sent again, under the same submission. */
  const sendAgain = async () => {
    const uploads = uploadsIn(readHistory(options.dir, options.slot))
    for (const at of [...places, bulkPlace]) {
      const submissions = await actor.pawl.records.in(at.set, { place: at.place }).submissions({ limit: 20 })
      for (const { id, name, state } of submissions.items) {
        const asked = uploads.get(name ?? '')
        const isOpen = state === 'uploading' || state === 'validating' || state === 'upload-failed'
        if (asked !== undefined && isOpen) await users[0]!.send({ ...asked, at, restart: id })
      }
    }
  }
  const live = async (user: Person) => {
    if (options.start > 1 && user === users[0]) await sendAgain().catch(() => undefined)
    const pauseMs = () => user.random.whole(5, 40)
    await subject.every(pauseMs, () => user.act(role))
  }
  await subject.live(() => users.map(live), actor)
}

function uploadsIn(entries: readonly Entry[]): Map<string, Pick<UploadAsked, 'key' | 'rows' | 'isBad'>> {
  const asked = entries.filter(({ op, ph }) => op === 'upload' && ph === 'invoke') as unknown as UploadAsked[]
  return new Map(asked.map(({ key, rows, isBad = false }) => [key, { key, rows, isBad }]))
}

class Person {
  readonly random: Random
  readonly #actor: Actor
  readonly #name: string
  /** Files with a row that the database refuses, to be sent again without it. */
  readonly #doomed: UploadAsked[] = []
  readonly #superseded: string[] = []
  #turn = 0

  constructor(actor: Actor, name: string, seed: number) {
    this.#actor = actor
    this.#name = name
    this.random = stream(seed, `user ${name}`)
  }

  async act(what: string): Promise<void> {
    this.#turn++
    const { random } = this
    const at = random.pick(places)
    if (what === 'restart') return this.#sendFile(at, true)
    if (what === 'upload') return this.#sendFile(random.pick([at, bulkPlace]))
    if (what === 'submit') return this.#sendFile(at)
    if (what === 'put') return this.#put(at, false)
    if (what === 'append') return this.#append(at)
    const draw = random.next()
    if (draw < 0.02) return this.#sendFile(bulkPlace)
    if (draw < 0.45) return this.#sendFile(at)
    if (draw < 0.68) return this.#put(at, random.chance(0.3))
    if (draw < 0.8) return this.#append(at)
    return draw < 0.9 ? this.#sendMended() : this.#rebase()
  }

  get #key(): string {
    return `${this.#name}/${this.#turn}`
  }

  /** A file with most of the rows of a place: some are as they are, some are new, now and then one is refused by the database. */
  async #sendFile(at: Place, breaksOff = this.random.chance(0.04)): Promise<void> {
    const seen = await this.#actor.read(at)
    if (seen === undefined) return
    const rows = this.#rowsFor(at, seen.marks)
    const isBad = this.random.chance(0.04)
    const asked: UploadAsked = { key: this.#key, at, rows, format: this.random.pick(['csv', 'ndjson', 'json']), isBad, breaksOff }
    if (rows.some(([, mark]) => isDoomed(mark))) this.#doomed.push(asked)
    await this.send(asked)
  }

  #rowsFor(at: Place, marks: ReadonlyMap<string, string>): Marked[] {
    const { random } = this
    const key = this.#key
    if (at.set === 'bulk') return Array.from({ length: bulkRows }, (_, index) => [keyOf(index), index % 3 === 0 ? key : '0'])
    const share = random.pick([0.3, 0.8, 1])
    const chosen = Array.from({ length: keysMax }, (_, index) => keyOf(index)).filter(() => random.chance(share))
    const rows = chosen.map((rowKey): Marked => [rowKey, random.chance(0.35) ? (marks.get(rowKey) ?? key) : key])
    // Late in the file, so that chunks are written before it is refused.
    if (rows.length > 0 && random.chance(0.25)) rows[rows.length - 1] = [rows.at(-1)![0], `${key}${random.pick(['!', '?'])}`]
    return rows.length > 0 ? rows : [[keyOf(0), key]]
  }

  async send(asked: UploadAsked): Promise<void> {
    const upload = await this.#actor.upload(asked)
    if (upload?.state !== 'validated') return
    if (this.random.chance(0.3)) await this.#actor.preview(upload)
    await this.#submit(upload)
  }

  /** Another user may have the slot: this one tries again for a moment, as people do. */
  async #submit(upload: Submission): Promise<void> {
    const { id } = upload
    for (let tried = 0; tried < 3; tried++) {
      if (await this.#actor.submit(upload)) {
        if (this.random.chance(0.4)) await this.#actor.ended(id, 2000)
        return
      }
      const now = await this.#actor.pawl.records.get(id).catch(() => undefined)
      if (now?.state === 'superseded') this.#superseded.push(id)
      if (now?.state !== 'validated') return
      await sleep(this.random.whole(20, 120))
    }
  }

  /** Now and then two puts go on top of the same version at the same moment. Few keys, so that they meet. */
  async #put(at: Place, isOwn: boolean): Promise<void> {
    const key = keyOf(this.random.whole(0, 7))
    const number = await this.#actor.numberOf(at, key)
    if (number === undefined) return
    const marks = (this.random.chance(0.4) ? [0, 1] : [0]).map((one) => `${this.#key}.${one}`)
    await Promise.all(marks.map((mark) => this.#actor.put(at, key, mark, number, isOwn)))
  }

  async #append(at: Place): Promise<void> {
    const first = this.random.whole(0, keysMax - 6)
    const length = this.random.whole(1, 6)
    const markOf = () => (this.random.chance(0.2) ? null : this.#key)
    await this.#actor.append(
      at,
      this.#key,
      Array.from({ length }, (_, index): Marked => [keyOf(first + index), markOf()]),
    )
  }

  /** The same file without the row that is refused. Its marks are those of the file that failed, or is failing at this very moment. */
  async #sendMended(): Promise<void> {
    const asked = this.#doomed.pop()
    if (asked === undefined) return
    await this.send({ ...asked, key: this.#key, isBad: false, rows: asked.rows.filter(([, mark]) => !isDoomed(mark)) })
  }

  async #rebase(): Promise<void> {
    const id = this.#superseded.pop()
    const made = id === undefined ? undefined : await this.#actor.rebase(id)
    if (made?.state === 'validated') await this.#submit(made)
  }
}

// ---- around them

export const clients = ['c1', 'c2']
/** An upload without progress for this time is sent again by the operator; its first sender, if it is still there, is refused. */
const hangsMs = 1200

export class RecordsTraffic extends Traffic {
  readonly user = new Actor(this.caller)
  readonly #operating = stream(this.plan.seed, 'operator')
  readonly #reading = stream(this.plan.seed, 'reader')
  readonly #numbers = new Map<string, string[]>()

  async start(): Promise<void> {
    for (const slot of clients) await this.startUsers(slot, { role: 'client', how: `storm ${this.plan.seed}` })
    this.every(100, () => this.#operate())
    this.every(30, () => this.#read())
    this.every(400, () => this.#takeOverUploads())
  }

  override async stop(): Promise<void> {
    await super.stop()
    await this.freeSlots()
  }

  async #operate(): Promise<void> {
    const draw = this.#operating.next()
    if (draw < 0.03) return this.#cancelOne()
    const [failed] = await this.rig.query<{ id: string; revision: number }>(
      `select u.id::text as id, u.revision from pawl.submission u
       join pawl.record_scope s on s.tenant = u.tenant and s.id = u.scope_id
       where u.state = 'failed' order by u.baseline = s.revision desc, u.submitting_at desc limit 1`,
    )
    if (failed === undefined) return
    if (draw < 0.8) await this.mend(failed.id)
    // Two people at once with the same view of it: one of them is too late.
    const times = this.#operating.chance(0.3) ? 2 : 1
    await Promise.all(Array.from({ length: times }, () => this.user.resume(failed)))
  }

  /** From now on the database takes the rows of this submission. */
  async mend(id: string): Promise<void> {
    await this.rig.query(
      `insert into torture.mended
       select distinct r.data ->> 'mark' from pawl.submission_row r where r.submission = $1::bigint and r.data ->> 'mark' ~ '[!?]$'`,
      [id],
    )
  }

  /** A person cancels a submission; or a program cancels its job by SQL, and the next user of the slot ends the submission. */
  async #cancelOne(): Promise<void> {
    const [found] = await this.rig.query<{ id: string; job: string }>(
      "select id::text as id, job_id::text as job from pawl.submission where state = 'submitting' order by id desc limit 1",
    )
    if (found === undefined) return
    const cancel: () => Promise<unknown> = this.#operating.chance(0.5)
      ? () => this.user.pawl.records.cancel(found.id, { reason: 'torture' })
      : () => this.rig.query("select pawl.cancel_jobs('', array[$1::bigint], 'torture')", [found.job])
    await this.rig.history.call('cancel', found, cancel)
  }

  /** A slot whose job is gone is freed by the next submit; a sweep comes only every ten seconds. */
  async freeSlots(): Promise<void> {
    const orphans = await this.rig.query<{ id: string } & Place>(
      `select u.id::text as id, s.record_set as set, s.scope::jsonb ->> 0 as place from pawl.submission u
       join pawl.record_scope s on s.tenant = u.tenant and s.id = u.scope_id
       where u.state = 'submitting'
         and not exists (select from pawl.job j where j.tenant = u.tenant and j.id = u.job_id and j.state <> 'dead')`,
    )
    for (const { id, set, place } of orphans)
      await this.#send({ key: `free ${id}`, at: { set, place }, rows: [[keyOf(0), `free ${id}`]] })
  }

  async #send(asked: UploadAsked): Promise<void> {
    const upload = await this.user.upload(asked)
    if (upload?.state === 'validated') await this.user.submit(upload)
  }

  async #takeOverUploads(): Promise<void> {
    const hanging = await this.rig.query<{ id: string; name: string } & Place>(
      `select u.id::text as id, u.name, u.record_set as set, s.scope::jsonb ->> 0 as place from pawl.submission u
       join pawl.record_scope s on s.tenant = u.tenant and s.id = u.scope_id
       where u.state in ('uploading', 'validating', 'upload-failed') and not exists (
         select from torture.change c where c.source = 'submission' and c.new ->> 'id' = u.id::text
           and c.at >= clock_timestamp() - $1::integer * interval '1 millisecond'
       )
       limit 3`,
      [hangsMs],
    )
    if (hanging.length === 0) return
    const uploads = uploadsIn(readHistory(this.rig.dir))
    for (const { id, name, set, place } of hanging) {
      const asked = uploads.get(name)
      if (asked !== undefined && !asked.isBad) await this.#send({ ...asked, at: { set, place }, restart: id })
    }
  }

  async #read(): Promise<void> {
    const random = this.#reading
    const at = random.chance(0.02) ? bulkPlace : random.pick(places)
    const known = this.#numbers.get(at.place) ?? []
    const draw = random.next()
    const paged = draw < 0.6 ? { pageRows: 17, pauseMs: random.whole(0, 15) } : {}
    const seen = await this.user.read(at, draw < 0.25 && known.length > 0 ? { asOf: random.pick(known) } : paged)
    if (seen !== undefined && seen.number !== '0' && known.at(-1) !== seen.number)
      this.#numbers.set(at.place, [...known, seen.number])
  }
}

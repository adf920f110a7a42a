// The verbs of jobs. Each that writes takes an optional transaction of the caller's; without one it is a transaction of our own, tried
// again when the database says that nothing was applied.

import type { Config } from '../config.ts'
import { callIn } from '../db/calls.ts'
import { sqlState, unavailable } from '../db/classify.ts'
import { type Db, dbOf } from '../db/db.ts'
import type { Pool } from '../db/driver.ts'
import { type Statement, statement, type Values } from '../db/statement.ts'
import { PawlError, shown } from '../errors.ts'
import type { Events } from '../kernel/events.ts'
import { currentTenant, txHandler } from '../kernel/handler.ts'
import { type Resolved, refused, resolve } from '../kernel/options.ts'
import { camelCase, type Page, pageOf } from '../kernel/pages.ts'
import { toJson } from '../kernel/payload.ts'
import { probe } from '../kernel/probe.ts'
import { read, retryingDefinite, sendChunks, setDurability } from '../kernel/retry.ts'
import { chunkRows, chunksOf, type EnqueuedRow, idsOf, type Payloads, toChunk } from './bulk.ts'
import { assertParses, type DefinedKind, defineKind, hasHandler, kindDefaults, type SettleWith, withHandler } from './kinds.ts'
import { assertUsers, changeTable, checkJobId, checkKind, enqueueTable, listTable, queueOf } from './options.ts'
import { isFinal } from './states.ts'
import type {
  AttemptRow,
  ChangeOptions,
  DefineOptions,
  EnqueueOptions,
  Handler,
  JobEvents,
  JobRow,
  JobState,
  Kind,
  ListOptions,
} from './types.ts'
import { explain, type Why } from './why.ts'

const cancelStatement = statement(import.meta.url, 'cancel')
const retryStatement = statement(import.meta.url, 'retry')
const getStatement = statement(import.meta.url, 'get')
const attemptsStatement = statement(import.meta.url, 'attempts')
const listOpenStatement = statement(import.meta.url, 'list-open')
const listFinishedStatement = statement(import.meta.url, 'list-finished')

const enqueueStatement = statement(import.meta.url, 'enqueue', 'any')

/** Not for applications: `jobs[defineOwn](...)`. */
export const defineOwn = Symbol('defineOwn')

type Enqueue = Resolved<typeof enqueueTable>

export interface JobsCore {
  readonly config: Config
  readonly kinds: Map<string, DefinedKind>
  /** Those that were made and not stopped. */
  readonly workers: ReadonlySet<unknown>
  readonly events: Events<JobEvents>
  readonly pool: Pool
  /** Whether names may begin with `pawl.`: of Pawl's own work. */
  readonly isPawls?: boolean
  /** The verbs that capabilities have in place of cancel and retry for jobs of their own. */
  readonly ownVerbs?: readonly OwnVerbs[]
}

/** The verbs for kinds that begin with `prefix`, such as 'batches.cancel(id)'. */
export interface OwnVerbs {
  readonly prefix: string
  readonly cancel: string
  readonly retry: string
}

export type ListedJob = Pick<
  JobRow,
  | 'tenant'
  | 'id'
  | 'queue'
  | 'kind'
  | 'state'
  | 'priority'
  | 'attempt'
  | 'crashes'
  | 'suspect'
  | 'lastError'
  | 'holder'
  | 'createdAt'
> & {
  readonly runAt: Date | null
  readonly finishedAt: Date | null
}

/** Jobs of one tenant. `pawl.jobs` is that of the job whose handler calls it, else the empty one; `pawl.for('acme').jobs` cannot name another's. */
export class Jobs {
  readonly #core: JobsCore
  readonly #given: string | undefined

  constructor(core: JobsCore, tenant: string | undefined) {
    this.#core = core
    this.#given = tenant
  }

  get #tenant(): string {
    return this.#given ?? currentTenant()
  }

  /**
   * Declares a kind and its handler. A worker of this process claims only kinds that have one here: a process that only enqueues leaves it out,
   * and the module of the worker gives it with `handle`.
   */
  define<Payload = unknown, Input = Payload>(name: string, options: DefineOptions<Payload, Input> = {}): Kind<Input, Payload> {
    return this.#define(defineKind(name, options as unknown as DefineOptions<never>, this.#isPawls))
  }

  /** A kind of Pawl's own that is settled with rows of its capability. */
  [defineOwn]<Payload>(name: string, options: DefineOptions<Payload>, settleWith: SettleWith): Kind<Payload> {
    return this.#define(defineKind(name, options as unknown as DefineOptions<never>, this.#isPawls, settleWith))
  }

  #define<Payload, Input>(kind: DefinedKind): Kind<Input, Payload> {
    const { name } = kind
    if (this.#core.kinds.has(name))
      throw new PawlError('PAWL_KIND_DEFINED_TWICE', `The kind '${name}' is already defined. Define each kind once.`)
    this.#add(kind)
    return { name, queue: kind.queue }
  }

  /** Gives a kind that was defined without one its handler, in the processes that work. */
  handle<Input, Payload>(kind: Kind<Input, Payload>, handler: Handler<Payload>): void {
    const name = checkKind('handle', kind, this.#isPawls)
    const defined = this.#core.kinds.get(name)
    if (defined === undefined)
      throw refused('handle', `kind must be one that this Pawl defines, got ${shown(name)}. Call define('${name}', ...) first`)
    if (hasHandler(defined))
      throw new PawlError('PAWL_KIND_DEFINED_TWICE', `The kind '${name}' already has a handler. Give each kind one handler.`)
    this.#add(withHandler(defined, handler as Handler<never>))
  }

  #add(kind: DefinedKind): void {
    const { config, kinds, workers } = this.#core
    kinds.set(kind.name, kind)
    if (!hasHandler(kind) || workers.size === 0) return
    config.logger.warn(
      { kind: kind.name },
      `the kind '${kind.name}' got its handler after a worker was created, and that worker will not run it. Define kinds before pawl.worker(), or create another worker`,
    )
  }

  /** Adds one job. With `tx` it is there if and only if your transaction commits. */
  enqueue<Input>(kind: Kind<Input, unknown> | string, payload: Input, options: EnqueueOptions = {}): Promise<{ id: string }> {
    return callIn(options?.tx, async () => {
      const [id] = await this.#enqueue('enqueue', kind, payload, undefined, options).catch(refuse)
      return { id: id! }
    })
  }

  /**
   * Adds many jobs of one kind in one transaction: yours, or one of our own. A generator, synchronous or not, is read as its jobs are sent, so
   * that any number of them takes little memory; in your own transaction, roll back if it rejects.
   */
  enqueueMany<Input>(
    kind: Kind<Input, unknown> | string,
    payloads: Payloads<Input>,
    options: EnqueueOptions = {},
  ): Promise<{ ids: string[] }> {
    return callIn(options?.tx, async () => {
      assertPayloads(payloads)
      return { ids: await this.#enqueue('enqueueMany', kind, undefined, payloads, options).catch(refuse) }
    })
  }

  async get(id: string): Promise<JobRow | undefined> {
    const [row] = await this.#find<Record<string, never>>(getStatement, { tenant: this.#tenant, id: checkJobId('get', id) })
    return row === undefined ? undefined : camelCase<JobRow>(row)
  }

  /** Every ended attempt, oldest first. */
  async attempts(id: string): Promise<AttemptRow[]> {
    const values = { tenant: this.#tenant, id: checkJobId('attempts', id) }
    const rows = await read<Record<string, never>>(this.#core.pool, attemptsStatement, values)
    return rows.map((row) => camelCase<AttemptRow>(row))
  }

  /** A page of jobs, newest first. Without a state: all but done and cancelled, and, without a kind, but Pawl's own that wait for their time. */
  async list(options: ListOptions = {}): Promise<Page<ListedJob>> {
    const { state, kind = null, queue = null, after, limit } = resolve('list', listTable, options)
    const isFinished = state !== undefined && isFinal(state)
    const rows = await read<Record<string, never>>(this.#core.pool, isFinished ? listFinishedStatement : listOpenStatement, {
      tenant: this.#tenant,
      state: state ?? null,
      kind,
      queue,
      after: after === undefined ? null : checkJobId('list', after),
      // One more than the page has: whether another follows.
      limit: limit + 1,
    })
    const listed = rows.map((row) => camelCase<ListedJob>({ run_at: null, finished_at: null, ...row }))
    return pageOf(listed, limit, ({ id }) => id)
  }

  /** Cancels a job. One that waits never starts; one that runs gets its signal, and its late result is refused. */
  async cancel(id: string, options: ChangeOptions = {}): Promise<{ was: JobState }> {
    const { state } = await this.#change<{ state: JobState }>('cancel', cancelStatement, id, options)
    return { was: state }
  }

  /** Makes a dead or scheduled job ready now. A dead one gets all its attempts back. */
  async retry(id: string, options: ChangeOptions = {}): Promise<{ revision: number }> {
    const { revision } = await this.#change<{ revision: number }>('retry', retryStatement, id, options)
    return { revision }
  }

  /** Why a job is not running, or what became of it. */
  async why(id: string): Promise<Why> {
    return explain((statement, values) => this.#find(statement, values), this.#tenant, checkJobId('why', id))
  }

  // ---- enqueue

  get #isPawls(): boolean {
    return this.#core.isPawls ?? false
  }

  async #enqueue(
    call: string,
    kind: Kind | string,
    one: unknown,
    many: Payloads<unknown> | undefined,
    given: EnqueueOptions,
  ): Promise<string[]> {
    const name = checkKind(call, kind, this.#isPawls)
    const options = resolve(call, enqueueTable, given)
    const queue = options.queue ?? queueOf(call, kind)
    if (!this.#isPawls) assertUsers(call, 'queue', queue)
    if (options.delay !== undefined && options.runAt !== undefined) throw refused(call, 'give delay or runAt, not both')
    const definition = this.#core.kinds.get(name)
    const textOf = this.#textOf(name, definition)
    const read = async () => (many === undefined ? [toChunk([await textOf(one)])] : gather(chunksOf(many, textOf)))
    const isRepeatable = many === undefined || Array.isArray(many)
    // An array is checked as a whole before any of it is written into a transaction that is not ours.
    const isWhole = isRepeatable && ((many?.length ?? 1) <= chunkRows || options.tx !== undefined)
    const whole = isWhole ? await read() : undefined
    const values = this.#enqueueValues(name, definition, { ...options, queue })
    const chunks = () => whole ?? chunksOf(many!, textOf)
    const send = (db: Db, chunk: string) => db.run<EnqueuedRow>(enqueueStatement, values(chunk))
    if (options.tx === undefined) this.#assertOutsideTx(call)
    const rows = await (options.tx !== undefined
      ? this.#enqueueIn(dbOf(options.tx), chunks(), send, options)
      : this.#enqueueOwn(chunks, send, options, isRepeatable))
    const ids = idsOf(rows)
    if (probe.on) await probe.hit('jobs.enqueue.sent', ids)
    return ids
  }

  async #enqueueOwn(chunks: () => Chunks, send: Send, options: Enqueue, isRepeatable: boolean): Promise<EnqueuedRow[]> {
    const { config, pool } = this.#core
    const durability = options.durability ?? config.durability
    const bulk = { durability, queryTimeoutMs: config.database.queryTimeoutMs }
    const sendAll = async () => {
      const all = chunks()
      // One statement is a transaction already, and none needs one.
      if (Array.isArray(all) && (all.length === 0 || (all.length === 1 && durability === 'durable')))
        return all.length === 0 ? [] : send(pool, all[0])
      return sendChunks(pool, bulk, all, send)
    }
    // A generator can be read once, so its transaction is not tried again.
    return isRepeatable ? retryingDefinite(sendAll) : sendAll().catch(throwUnavailable)
  }

  /** The payload as it is stored: as given, if the kind's schema can read that. */
  #textOf(name: string, definition: DefinedKind | undefined): (payload: unknown) => string | Promise<string> {
    const limits = { bytesMax: this.#core.config.payloadBytesMax }
    const what = `The payload of '${name}': payload`
    return (payload) => {
      const text = toJson(payload === undefined ? null : payload, what, limits)
      return definition?.schema === undefined ? text : assertParses(definition, payload, text).then(() => text)
    }
  }

  #enqueueValues(name: string, definition: DefinedKind | undefined, options: Enqueue): (payloads: string) => Values {
    const { headers } = options
    const headersText = headers === undefined ? null : toJson(headers, 'headers', { bytesMax: this.#core.config.payloadBytesMax })
    return (payloads) => ({
      tenant: this.#tenant,
      queue: options.queue ?? definition?.queue ?? kindDefaults.queue,
      kind: name,
      payloads,
      payload_version: definition?.payloadVersion ?? 1,
      run_at: options.runAt?.toISOString() ?? null,
      delay_ms: options.delay ?? null,
      priority: options.priority,
      // The limits of the kind are those of the worker that claims it.
      max_attempts: options.maxAttempts ?? null,
      headers: headersText,
      wake: options.wake,
    })
  }

  async #enqueueIn(tx: Db, chunks: Chunks, send: Send, options: Enqueue): Promise<EnqueuedRow[]> {
    const level = options.durability ?? this.#core.config.durability
    // 'relaxed' would lower it, and 'durable' is PostgreSQL's default; both are left to the function.
    if (level !== 'relaxed' && (options.durability !== undefined || level === 'replicated')) await setDurability(tx, level)
    const rows: EnqueuedRow[] = []
    for await (const chunk of chunks) rows.push(...(await send(tx, chunk)))
    return rows
  }

  // ---- reading and changing

  #assertOutsideTx(verb: string): void {
    const held = txHandler()
    if (held === undefined) return
    throw new PawlError(
      'PAWL_TX_REQUIRED',
      `${verb} was called inside the tx handler of '${held.kind}' without its transaction: it would commit separately, and could wait forever for a connection that this handler holds. Pass { tx }.`,
    )
  }

  /** From the day that the id carries; where that finds nothing in all days, because the clock may have been ahead then. */
  async #find<Row>(query: Statement, values: Values): Promise<Row[]> {
    const found = await read<Row>(this.#core.pool, query, { ...values, since: null })
    return found.length > 0 ? found : read<Row>(this.#core.pool, query, { ...values, since: '-infinity' })
  }

  async #change<Row>(verb: 'cancel' | 'retry', query: Statement, id: string, options: ChangeOptions): Promise<Row> {
    const { revision = null, by = null, reason = null, wake, tx } = resolve(verb, changeTable, options)
    const values = { tenant: this.#tenant, id: checkJobId(verb, id), revision, by, reason, wake, is_pawls: this.#isPawls }
    if (tx === undefined) this.#assertOutsideTx(verb)
    const [row] = await (tx !== undefined
      ? dbOf(tx).run<Row>(query, values)
      : retryingDefinite(() => this.#core.pool.run<Row>(query, values)))
    if (row === undefined) throw await this.#whyNot(verb, id, revision)
    return row
  }

  /** Every zero-row update is an answer. */
  async #whyNot(verb: 'cancel' | 'retry', id: string, revision: number | null): Promise<PawlError> {
    const job = await this.get(id)
    if (job === undefined) return new PawlError('PAWL_NOT_FOUND', `There is no job ${id}.`, { details: { id } })
    if (!this.#isPawls && job.kind.startsWith('pawl.')) {
      const use = this.#core.ownVerbs?.find(({ prefix }) => job.kind.startsWith(prefix))?.[verb]
      const fix = use === undefined ? '' : ` Call ${use} instead.`
      return new PawlError('PAWL_WRONG_STATE', `Job ${id} is of kind '${job.kind}', which Pawl runs for itself.${fix}`, {
        details: { id, kind: job.kind, ...(use === undefined ? {} : { use }) },
      })
    }
    if (revision !== null && job.revision !== null && job.revision !== revision) {
      return new PawlError(
        'PAWL_REVISION_CONFLICT',
        `Job ${id} is at revision ${job.revision}, not ${revision}: it has changed. Read it again and retry with the new revision.`,
        { details: { id, expected: revision, actual: job.revision } },
      )
    }
    return new PawlError(
      'PAWL_WRONG_STATE',
      `Job ${id} is ${job.state} and cannot be ${verb === 'cancel' ? 'cancelled' : 'retried'}.`,
      { details: { id, state: job.state } },
    )
  }
}

function throwUnavailable(error: unknown): never {
  throw unavailable(error)
}

type Chunks = readonly string[] | AsyncIterable<string>
type Send = (db: Db, chunk: string) => Promise<EnqueuedRow[]>

async function gather(chunks: AsyncIterable<string>): Promise<string[]> {
  const gathered: string[] = []
  for await (const chunk of chunks) gathered.push(chunk)
  return gathered
}

function assertPayloads(payloads: unknown): void {
  const isIterable =
    typeof payloads === 'object' && payloads !== null && (Symbol.iterator in payloads || Symbol.asyncIterator in payloads)
  if (isIterable) return
  throw refused(
    'enqueueMany',
    `payloads must be an array or a generator of payloads, got ${shown(payloads)}. For one job call enqueue`,
  )
}

/** Makes an argument error of enqueue_many one of ours. */
function refuse(error: unknown): never {
  if (sqlState(error) !== '22023') throw error
  const { message, hint = '' } = error as Error & { hint?: string }
  throw new PawlError('PAWL_CONFIG', `${message}. ${hint}`.trim(), { cause: error })
}

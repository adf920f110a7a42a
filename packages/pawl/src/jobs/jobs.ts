// The verbs of jobs. Each that writes takes an optional transaction of the caller's; without one it is a transaction of our own, tried
// again when the database says that nothing was applied.

import { assertKnown, type Config, durabilities, notOneOf, whole } from '../config.ts'
import { areEffectsSuppressed, type Tx, toTx } from '../db/adapters.ts'
import { classify } from '../db/classify.ts'
import { type Connection, type Pool, unavailable } from '../db/driver.ts'
import { bind, type Parameter, type Statement, statement } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import { delayMsMax, durationMs } from '../kernel/clock.ts'
import { answerLost, retryingDefinite } from '../kernel/definite.ts'
import type { Events } from '../kernel/events.ts'
import { probe } from '../kernel/probe.ts'
import { retrying } from '../kernel/retry.ts'
import { type DefinedKind, defineKind, kindDefaults, validate } from './kinds.ts'
import { toJson } from './payload.ts'
import { txHandler } from './runner.ts'
import { assertStandby } from './start-checks.ts'
import { isFinal } from './states.ts'
import type {
  AttemptRow,
  DefineOptions,
  EnqueueOptions,
  JobEvents,
  JobRow,
  JobState,
  Kind,
  RunOptions,
  TxOptions,
  WorkerOptions,
} from './types.ts'
import { explain, type Why } from './why.ts'
import { Worker } from './worker.ts'

const cancelStatement = statement(import.meta.url, 'cancel')
const retryStatement = statement(import.meta.url, 'retry')
const getStatement = statement(import.meta.url, 'get')
const attemptsStatement = statement(import.meta.url, 'attempts')
const listLiveStatement = statement(import.meta.url, 'list-live')
const listFinishedStatement = statement(import.meta.url, 'list-finished')

const enqueueCall = `pawl.enqueue_many($1::text, $2::text, $3::text, $4::jsonb, $5::integer, $6::timestamptz, $7::bigint,
  $8::integer, $9::integer, $10::integer, $11::jsonb, $12::boolean)`
const enqueueOneSql = `select id::text as ids from ${enqueueCall} as id`
// The ids of many come back as one text: a row for each would cost as much as a third of its insert.
const enqueueSql = `select string_agg(id::text, ',') as ids from ${enqueueCall} as id`
const durabilitySql = 'select pawl.set_durability($1::text, $2::boolean)::text as level'

const knownEnqueue = new Set(['tx', 'runAt', 'delay', 'priority', 'maxAttempts', 'queue', 'headers', 'durability', 'wake'])
const chunkRows = 1000
/** PostgreSQL takes 256 MB in one value; this much is many times what a statement costs by itself. */
const chunkChars = 8 * 1_048_576

export interface JobsCore {
  readonly config: Config
  readonly kinds: Map<string, DefinedKind>
  readonly events: Events<JobEvents>
  readonly pool: Pool
}

export interface ListOptions {
  readonly state?: JobState
  readonly kind?: string
  readonly queue?: string
  readonly limit?: number
  /** The id that ended the last page. */
  readonly before?: string
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

export interface ChangeOptions {
  /** Change it only if it is still at this revision. */
  readonly revision?: number
  readonly tx?: object
  /** false: notify no worker; each finds out by itself within seconds. Needed before PREPARE TRANSACTION, which cannot notify. */
  readonly wake?: boolean
}

/** Jobs of one tenant. `pawl.jobs` is the one without a tenant; `pawl.for('acme').jobs` cannot name another's. */
export class Jobs {
  readonly #core: JobsCore
  readonly #tenant: string

  constructor(core: JobsCore, tenant: string) {
    this.#core = core
    this.#tenant = tenant
  }

  /** Declares a kind and its handler. A worker of this process claims only kinds that are declared here. */
  define<Payload = unknown>(name: string, options: RunOptions<Payload> | TxOptions<Payload>): Kind<Payload> {
    if (this.#core.kinds.has(name))
      throw new PawlError('PAWL_KIND_DEFINED_TWICE', `The kind '${name}' is defined already. Define each kind once.`)
    const kind = defineKind(name, options as unknown as DefineOptions<never>)
    this.#core.kinds.set(name, kind)
    return { name, queue: kind.queue }
  }

  /** Adds one job. With `tx` it is there if and only if your transaction commits. */
  async enqueue<Payload>(kind: Kind<Payload> | string, payload: Payload, options: EnqueueOptions = {}): Promise<{ id: string }> {
    const { ids } = await this.enqueueMany(kind, [payload], options)
    return { id: ids[0]! }
  }

  /** Adds many jobs of one kind in one transaction: yours, or one of our own. */
  async enqueueMany<Payload>(
    kind: Kind<Payload> | string,
    payloads: readonly Payload[],
    options: EnqueueOptions = {},
  ): Promise<{ ids: string[] }> {
    assertKnown('enqueue', options, knownEnqueue)
    const name = typeof kind === 'string' ? kind : kind.name
    const definition = this.#core.kinds.get(name)
    const texts = await this.#payloadTexts(name, definition, payloads)
    // A replay must not reach the outside again; what it would have added was added before, under another id.
    if (areEffectsSuppressed(options.tx)) return { ids: payloads.map(() => '0') }
    const values = this.#enqueueValues(name, definition, options)
    if (options.tx !== undefined) return this.#enqueueIn(toTx(options.tx), texts, values, options)
    this.#assertOutsideTx('enqueue')
    return { ids: await this.#enqueueOwn(texts, values, options) }
  }

  async get(id: string): Promise<JobRow | undefined> {
    const [row] = await this.#read<Record<string, never>>(getStatement, { tenant: this.#tenant, id: jobId(id) })
    return row === undefined ? undefined : (camelCase(row) as unknown as JobRow)
  }

  /** Every ended attempt, oldest first. */
  async attempts(id: string): Promise<AttemptRow[]> {
    const rows = await this.#read<Record<string, never>>(attemptsStatement, { tenant: this.#tenant, id: jobId(id) })
    return rows.map((row) => camelCase(row) as unknown as AttemptRow)
  }

  /** A page of jobs, newest first. Without a state: live ones. */
  async list(options: ListOptions = {}): Promise<ListedJob[]> {
    const { state, kind = null, queue = null, before = null, limit = 50 } = options
    const isFinished = state !== undefined && isFinal(state)
    const rows = await this.#read<Record<string, never>>(isFinished ? listFinishedStatement : listLiveStatement, {
      tenant: this.#tenant,
      state: state ?? null,
      kind,
      queue,
      before: before === null ? null : jobId(before),
      limit: whole('limit', limit, 1, 500),
    })
    return rows.map((row) => camelCase({ run_at: null, finished_at: null, ...row }) as unknown as ListedJob)
  }

  /** Cancels a job. One that waits never starts; one that runs gets its signal, and its late result is refused. */
  async cancel(id: string, options: ChangeOptions & { reason?: string } = {}): Promise<{ was: JobState }> {
    const values = {
      tenant: this.#tenant,
      id: jobId(id),
      revision: options.revision ?? null,
      reason: options.reason ?? null,
      wake: options.wake ?? true,
    }
    const [row] = await this.#write<{ state: JobState }>('cancel', cancelStatement, values, options)
    if (row === undefined) throw await this.#whyNot('cancelled', id, options.revision)
    return { was: row.state }
  }

  /** Makes a dead or scheduled job ready now. A dead one gets all its attempts back. */
  async retry(id: string, options: ChangeOptions = {}): Promise<{ revision: number }> {
    const values = { tenant: this.#tenant, id: jobId(id), revision: options.revision ?? null, wake: options.wake ?? true }
    const [row] = await this.#write<{ revision: number }>('retry', retryStatement, values, options)
    if (row === undefined) throw await this.#whyNot('retried', id, options.revision)
    return { revision: row.revision }
  }

  /** Why a job is not running, or what became of it. */
  async why(id: string): Promise<Why> {
    return explain((statement, values) => this.#read(statement, values), this.#tenant, jobId(id))
  }

  /** A worker for the kinds declared so far. Call start(). */
  worker(options: WorkerOptions = {}): Worker {
    return new Worker(this.#core, options)
  }

  // ---- enqueue

  async #payloadTexts(name: string, definition: DefinedKind | undefined, payloads: readonly unknown[]): Promise<string[]> {
    const { payloadBytesMax: bytesMax, payloadDepthMax: depthMax } = this.#core.config
    const limits = { bytesMax, depthMax }
    const what = `The payload of '${name}': payload`
    const texts: string[] = []
    for (const payload of payloads) {
      const validated = definition?.schema === undefined ? payload : await validate(definition, payload)
      texts.push(toJson(validated === undefined ? null : validated, what, limits))
    }
    return texts
  }

  #enqueueValues(name: string, definition: DefinedKind | undefined, options: EnqueueOptions): (payloads: string) => unknown[] {
    const { runAt, delay, priority = 0, maxAttempts, headers, wake = true, durability } = options
    if (name.length === 0 || name.length > 200) throw new PawlError('PAWL_CONFIG', 'The name of a kind has 1 to 200 characters.')
    if (runAt !== undefined && Number.isNaN(runAt.getTime())) throw new PawlError('PAWL_CONFIG', 'runAt is not a valid date.')
    if (durability !== undefined && !durabilities.includes(durability)) throw notOneOf('durability', durability, durabilities)
    whole('priority', priority, -100, 100)
    const delayMs = delay === undefined ? null : whole('delay', Math.round(durationMs(delay)), 0, delayMsMax)
    const { payloadBytesMax: bytesMax, payloadDepthMax: depthMax } = this.#core.config
    const headersText = headers === undefined ? null : toJson(headers, 'headers', { bytesMax, depthMax })
    return (payloads) => [
      this.#tenant,
      options.queue ?? definition?.queue ?? kindDefaults.queue,
      name,
      payloads,
      definition?.payloadVersion ?? 1,
      runAt?.toISOString() ?? null,
      delayMs,
      priority,
      maxAttempts ?? definition?.attempts ?? null,
      definition?.crashes ?? null,
      headersText,
      wake,
    ]
  }

  async #enqueueIn(
    tx: Tx,
    texts: readonly string[],
    values: (payloads: string) => unknown[],
    options: EnqueueOptions,
  ): Promise<{ ids: string[] }> {
    const level = options.durability ?? this.#core.config.durability
    // 'relaxed' would be a lowering, and 'durable' is what PostgreSQL does unless someone switched it off; both are left to the function.
    if (level !== 'relaxed' && (options.durability !== undefined || level === 'replicated')) {
      if (level === 'replicated')
        await assertStandby({ query: async (text: string) => (await tx.query(text)).rows } as unknown as Connection)
      await tx.query(durabilitySql, [level, false])
    }
    const ids: string[] = []
    for (const chunk of chunks(texts)) {
      const { rows } = await tx.query<EnqueuedRow>(enqueueSql, values(chunk))
      ids.push(...idsOf(rows))
    }
    if (probe.on) await probe.hit('jobs.enqueue.sent', ids)
    return { ids }
  }

  /** One statement is a transaction already; more of them, or another durability, get one around them. */
  async #enqueueOwn(
    texts: readonly string[],
    values: (payloads: string) => unknown[],
    options: EnqueueOptions,
  ): Promise<string[]> {
    if (texts.length === 0) return []
    const level = options.durability ?? this.#core.config.durability
    const [first, second] = chunks(texts)
    const isPlain = second === undefined && level === 'durable'
    let ids: string[]
    try {
      ids = isPlain
        ? await this.#enqueuePlain(values(first!), texts.length === 1)
        : await this.#enqueueTransaction(texts, values, level)
    } catch (error) {
      throw classify(error) === 'connection' ? answerLost(error) : unavailable(error)
    }
    if (probe.on) await probe.hit('jobs.enqueue.sent', ids)
    return ids
  }

  async #enqueuePlain(values: unknown[], isOne: boolean): Promise<string[]> {
    const isNamed = this.#core.config.database.pooler === 'none'
    const text = isOne ? enqueueOneSql : enqueueSql
    const query = isNamed ? { name: isOne ? 'pawl_enqueue_one' : 'pawl_enqueue', text, values } : { text, values }
    const { rows } = await retryingDefinite(() => this.#core.pool.query<EnqueuedRow>(query))
    return idsOf(rows)
  }

  async #enqueueTransaction(texts: readonly string[], values: (payloads: string) => unknown[], level: string): Promise<string[]> {
    return retryingDefinite(async () => {
      const client = await this.#core.pool.connect()
      let isBroken = true
      try {
        if (level === 'replicated')
          await assertStandby({ query: async (text: string) => (await client.query(text)).rows } as unknown as Connection)
        // Pipelined: every chunk is on its way while the first is still worked on. The commit's own word decides.
        const sent = [client.query('begin'), client.query(durabilitySql, [level, true])]
        for (const chunk of chunks(texts)) sent.push(client.query(enqueueSql, values(chunk)))
        sent.push(client.query('commit'))
        const answers = await Promise.allSettled(sent)
        const failed = answers.find((answer) => answer.status === 'rejected')
        isBroken = failed !== undefined && classify(failed.reason) === 'connection'
        if (failed !== undefined) throw failed.reason
        const results = answers.map(
          (answer) => (answer as PromiseFulfilledResult<{ rows: EnqueuedRow[]; command: string }>).value,
        )
        if (results.at(-1)!.command !== 'COMMIT') throw new PawlError('PAWL_ROLLED_BACK', 'The enqueue was rolled back.')
        return results.slice(2, -1).flatMap((result) => idsOf(result.rows))
      } finally {
        client.release(isBroken)
      }
    })
  }

  // ---- reading and changing

  #assertOutsideTx(verb: string): void {
    const held = txHandler()
    if (held === undefined) return
    throw new PawlError(
      'PAWL_TX_REQUIRED',
      `${verb} was called inside the tx handler of '${held.kind}' without its transaction: it would not commit with the job, and could wait for the pool that this handler occupies. Pass { tx }.`,
    )
  }

  async #read<Row>(query: Statement, values: Readonly<Record<string, Parameter>>): Promise<Row[]> {
    try {
      return await retrying(async () => (await this.#core.pool.query(query.text, bind(query, values) as unknown[])).rows as Row[])
    } catch (error) {
      throw unavailable(error)
    }
  }

  async #write<Row>(
    verb: string,
    query: Statement,
    values: Readonly<Record<string, Parameter>>,
    options: ChangeOptions,
  ): Promise<Row[]> {
    if (options.tx !== undefined) return (await toTx(options.tx).query<Row>(query.text, bind(query, values))).rows
    this.#assertOutsideTx(verb)
    try {
      return await retryingDefinite(
        async () => (await this.#core.pool.query(query.text, bind(query, values) as unknown[])).rows as Row[],
      )
    } catch (error) {
      throw unavailable(error)
    }
  }

  /** Every zero-row update is an answer. */
  async #whyNot(verb: string, id: string, revision: number | undefined): Promise<PawlError> {
    const job = await this.get(id)
    if (job === undefined) return new PawlError('PAWL_NOT_FOUND', `There is no job ${id}.`, { details: { id } })
    if (revision !== undefined && job.revision !== null && job.revision !== revision) {
      return new PawlError(
        'PAWL_REVISION_CONFLICT',
        `Job ${id} is at revision ${job.revision}, not ${revision}: somebody changed it. Read it again and decide anew.`,
        {
          details: { id, expected: revision, actual: job.revision },
        },
      )
    }
    return new PawlError('PAWL_WRONG_STATE', `Job ${id} is ${job.state} and cannot be ${verb}.`, {
      details: { id, state: job.state },
    })
  }
}

interface EnqueuedRow {
  readonly ids: string | null
}

function idsOf(rows: readonly EnqueuedRow[]): string[] {
  return rows[0]?.ids?.split(',') ?? []
}

/** JSON arrays of at most so many payloads, and of so much text unless a single one is longer. */
function* chunks(texts: readonly string[]): Generator<string> {
  for (let from = 0, to = 0; from < texts.length; from = to) {
    for (let chars = 0; to < texts.length && to - from < chunkRows; to++) {
      chars += texts[to]!.length
      if (to > from && chars > chunkChars) break
    }
    yield `[${texts.slice(from, to).join(',')}]`
  }
}

function jobId(id: string): string {
  if (/^\d{1,19}$/.test(id) && BigInt(id) < 2n ** 63n) return id
  throw new PawlError('PAWL_NOT_FOUND', `'${id.slice(0, 100)}' is not the id of a job: ids are numbers of up to 19 digits.`)
}

function camelCase(row: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(row).map(([name, value]) => [name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase()), value]),
  )
}

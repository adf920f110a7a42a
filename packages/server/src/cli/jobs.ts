// `pawl jobs ...`: look at jobs and change them.

import { readFile } from 'node:fs/promises'
import { createInterface } from 'node:readline/promises'
import { InvalidArgumentError, Option } from 'commander'
import {
  type AttemptRow,
  finalStates,
  type JobRow,
  type JobState,
  type ListedJob,
  openStates,
  PawlError,
  type Tenant,
  type Why,
} from 'pawl'
import { withPawl } from './database.ts'
import { exitCodes, failureOf, reportFailure, UsageError } from './failure.ts'
import type { CommandAdder, Context } from './program.ts'
import { type Column, oneLine, type Paint, relativeTime, type Terminal } from './terminal.ts'

const limitMax = 500

const stateColours: Readonly<Record<JobState, Paint | undefined>> = {
  scheduled: 'cyan',
  ready: undefined,
  running: 'cyan',
  dead: 'red',
  done: 'green',
  cancelled: 'dim',
}

export function addJobs(adder: CommandAdder): void {
  const jobs = adder.add(undefined, 'jobs', {
    summary: 'List, inspect and change jobs.',
    examples: ['pawl jobs list', 'pawl jobs add email \'{"to": "a@b.c"}\''],
  })
  addList(adder, jobs)
  addGet(adder, jobs)
  addAdd(adder, jobs)
  addRetry(adder, jobs)
  addCancel(adder, jobs)
  addWhy(adder, jobs)
}

type Parent = Parameters<CommandAdder['add']>[0]

function open<T>({ database, tenant }: Context, work: (handle: Tenant) => Promise<T>): Promise<T> {
  return withPawl({ database, tenant }, work)
}

// ---- list

interface ListFlags {
  readonly state?: JobState
  readonly kind?: string
  readonly queue?: string
  readonly limit: number
  readonly before?: string
}

function addList(adder: CommandAdder, parent: Parent): void {
  const command = adder.add(parent, 'list', {
    summary: 'List jobs, newest first: all but done and cancelled, or those in one state.',
    examples: ['pawl jobs list', 'pawl jobs list --state dead --kind email', 'pawl jobs list --state done -o jsonl'],
  })
  command
    .addOption(new Option('--state <state>', 'only this state').choices([...openStates, ...finalStates]))
    .option('--kind <kind>', 'only this kind')
    .option('--queue <queue>', 'only this queue')
    .option('--limit <count>', `how many to list, up to ${limitMax}`, wholeNumber(1, limitMax), 50)
    .option('--before <id>', "list the next page: the 'next' of the previous one")
  adder.does<ListFlags>(command, list)
}

async function list(context: Context<ListFlags>): Promise<void> {
  const { terminal, flags } = context
  const { state, kind, queue, limit, before } = flags
  const isFinished = state !== undefined && finalStates.includes(state)
  const items = await open(context, ({ jobs }) =>
    jobs.list({
      limit,
      ...(state ? { state } : {}),
      ...(kind ? { kind } : {}),
      ...(queue ? { queue } : {}),
      ...(before ? { before } : {}),
    }),
  )
  const next = items.length < limit ? null : items.at(-1)!.id
  if (terminal.output === 'jsonl') for (const item of items) terminal.json(item)
  else if (terminal.output === 'json') terminal.json({ items, next })
  else terminal.table(isFinished ? finishedColumns : liveColumns, items)
  if (items.length === 0)
    terminal.say(
      state === undefined
        ? "No live jobs. For finished jobs, run 'pawl jobs list --state done'."
        : `No ${state} jobs${kind ? ` of kind ${kind}` : ''}.`,
    )
  else if (next !== null) terminal.say(`There may be more: --before ${next}`)
}

const firstColumns: readonly Column<ListedJob>[] = [
  { title: 'id', value: ({ id }) => id },
  { title: 'kind', value: ({ kind }) => kind },
  { title: 'queue', value: ({ queue }) => queue },
  {
    title: 'state',
    value: ({ state, suspect }) => (suspect ? `${state}, suspect` : state),
    paint: ({ state }) => stateColours[state],
  },
  { title: 'attempt', value: ({ attempt }) => String(attempt), isRight: true },
  { title: 'created', value: ({ createdAt }) => relativeTime(createdAt) },
]
const lastError: Column<ListedJob> = { title: 'last error', value: ({ lastError: error }) => (error ?? '').split('\n')[0]! }
const liveColumns = [
  ...firstColumns,
  { title: 'runs', value: (job: ListedJob) => (job.state === 'scheduled' ? relativeTime(job.runAt) : '') },
  lastError,
]
const finishedColumns = [
  ...firstColumns,
  { title: 'finished', value: (job: ListedJob) => relativeTime(job.finishedAt) },
  lastError,
]

// ---- get

function addGet(adder: CommandAdder, parent: Parent): void {
  const command = adder.add(parent, 'get', {
    summary: 'Show one job with its payload, result and attempts.',
    examples: ['pawl jobs get 3752613581234176001'],
  })
  command.argument('<id>', 'the job id')
  adder.does(command, async (context, id: string) => {
    const { job, attempts } = await open(context, async ({ jobs }) => ({
      job: await jobs.get(id),
      attempts: await jobs.attempts(id),
    }))
    if (job === undefined)
      throw new PawlError(
        'PAWL_NOT_FOUND',
        `There is no job ${oneLine(id)}${context.tenant ? ` of tenant '${context.tenant}'` : ''}.`,
      )
    if (context.terminal.output === 'table') showJob(context.terminal, job, attempts)
    else context.terminal.json({ ...job, attempts })
  })
}

function showJob(terminal: Terminal, job: JobRow, attempts: readonly AttemptRow[]): void {
  const time = (value: Date | null): string => (value === null ? '' : `${value.toISOString()} (${relativeTime(value)})`)
  const json = (value: unknown): string => (value === null || value === undefined ? '' : oneLine(JSON.stringify(value)))
  const pairs: [string, string, (Paint | undefined)?][] = [
    ['id', job.id, 'bold'],
    ['kind', oneLine(job.kind)],
    ['queue', oneLine(job.queue)],
    ['tenant', oneLine(job.tenant)],
    ['state', job.suspect ? `${job.state}, suspect` : job.state, stateColours[job.state]],
    ['attempt', job.maxAttempts === null ? String(job.attempt) : `${job.attempt} of ${job.maxAttempts}`],
    ['crashes', job.crashes > 0 ? String(job.crashes) : ''],
    ['snoozes', job.snoozes ? String(job.snoozes) : ''],
    ['revision', job.revision === null ? '' : String(job.revision)],
    ['worker', job.holder === null ? '' : String(job.holder)],
    ['created', time(job.createdAt)],
    ['runs', job.state === 'scheduled' ? time(job.runAt) : ''],
    ['claimed', time(job.claimedAt)],
    ['finished', time(job.finishedAt)],
    ['ran', job.ranMs === null ? '' : `${job.ranMs} ms`],
    ['payload', json(job.payload)],
    ['headers', json(job.headers)],
    ['progress', json(job.progress)],
    ['result', json(job.result)],
    ['last error', oneLine((job.lastError ?? '').split('\n')[0]!), 'red'],
  ]
  terminal.pairs(pairs.filter(([, value]) => value !== ''))
  if (attempts.length === 0) return
  terminal.line('')
  terminal.table(
    [
      { title: 'attempt', value: ({ attempt }) => String(attempt), isRight: true },
      {
        title: 'outcome',
        value: ({ outcome }) => outcome,
        paint: ({ outcome }) => (outcome === 'done' ? 'green' : 'yellow'),
      },
      { title: 'ended', value: ({ endedAt }) => relativeTime(endedAt) },
      { title: 'ms', value: ({ ranMs }) => String(ranMs ?? ''), isRight: true },
      { title: 'worker', value: ({ holder }) => String(holder ?? ''), isRight: true },
      { title: 'error', value: ({ error }) => (error ?? '').split('\n')[0]! },
    ],
    attempts,
  )
}

// ---- add

interface AddFlags {
  readonly queue?: string
  readonly delay?: string
  readonly at?: Date
  readonly priority?: number
  readonly maxAttempts?: number
}

function addAdd(adder: CommandAdder, parent: Parent): void {
  const command = adder.add(parent, 'add', {
    summary: 'Add a job and print its id.',
    examples: [
      'pawl jobs add email \'{"to": "a@b.c"}\'',
      'pawl jobs add report @payload.json --delay 15m',
      "echo '{}' | pawl jobs add cleanup -",
    ],
  })
  command
    .argument('<kind>', 'the kind, as a worker defines it')
    .argument('[payload]', 'JSON, @file, or - for stdin', '{}')
    .option('--queue <queue>', "the queue that the kind's workers take jobs from", 'default')
    .option('--delay <duration>', 'run it after 250ms, 5s, 15m, 2h or 7d')
    .option('--at <time>', 'run it at this time, such as 2030-01-31T08:00:00Z', time)
    .option('--priority <points>', 'from -100 to 100; each point counts as a minute of waiting', wholeNumber(-100, 100))
    .option('--max-attempts <count>', 'number of failures after which the job is dead', wholeNumber(1, 1_000_000))
  adder.does<AddFlags>(command, add)
}

async function add(context: Context<AddFlags>, kind: string, payloadText: string): Promise<void> {
  const { terminal, flags } = context
  const payload = await readPayload(payloadText, terminal)
  const { queue, delay, at, priority, maxAttempts } = flags
  const options = {
    ...(queue === undefined ? {} : { queue }),
    ...(delay === undefined ? {} : { delay }),
    ...(at === undefined ? {} : { runAt: at }),
    ...(priority === undefined ? {} : { priority }),
    ...(maxAttempts === undefined ? {} : { maxAttempts }),
  }
  const { id, why } = await open(context, async ({ jobs }) => {
    const added = await jobs.enqueue(kind, payload, options)
    return { id: added.id, why: await jobs.why(added.id) }
  })
  if (terminal.output === 'table') terminal.line(id)
  else terminal.json({ id })
  // A job that nobody will take is the commonest surprise, so it is said at once and not when somebody wonders.
  for (const { code, text } of why.reasons)
    if (code === 'queue-not-worked' || code === 'kind-unknown') terminal.say(`note  ${text}`)
}

async function readPayload(text: string, { streams }: Terminal): Promise<unknown> {
  const source = text === '-' ? await readAll(streams.stdin) : text.startsWith('@') ? await readPayloadFile(text.slice(1)) : text
  try {
    const payload: unknown = JSON.parse(source)
    assertExact(source)
    return payload
  } catch (error) {
    if (error instanceof UsageError) throw error
    throw new UsageError(
      `The payload is not valid JSON: ${(error as Error).message}.`,
      `quote it for the shell: pawl jobs add <kind> '{"name": "value"}'`,
    )
  }
}

const stringOrInteger = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g

/** JSON.parse rounds a long integer in silence. */
function assertExact(json: string): void {
  for (const [token] of json.matchAll(stringOrInteger))
    if (/^-?\d{16,}$/.test(token) && BigInt(token) !== BigInt(Number(token)))
      throw new UsageError(
        `The payload has the number ${token.slice(0, 40)}, which a JavaScript number cannot represent exactly.`,
        `pass it as a string: "${token.slice(0, 40)}"`,
      )
}

async function readPayloadFile(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8')
  } catch (error) {
    throw new UsageError(`The payload file cannot be read: ${(error as Error).message}.`, 'give the path after the @')
  }
}

async function readAll(stream: NodeJS.ReadableStream): Promise<string> {
  const chunks: Buffer[] = []
  for await (const chunk of stream) chunks.push(chunk as Buffer)
  return Buffer.concat(chunks).toString('utf8')
}

// ---- retry and cancel

interface ChangeFlags {
  readonly revision?: number
  readonly reason?: string
  readonly yes?: boolean
}

function addRetry(adder: CommandAdder, parent: Parent): void {
  const command = adder.add(parent, 'retry', {
    summary: 'Make dead or scheduled jobs ready now. A dead job gets all its attempts back.',
    examples: ['pawl jobs retry 3752613581234176001'],
  })
  command
    .argument('<id...>', 'job ids')
    .option('--revision <number>', 'only if the job is still at this revision', wholeNumber(1, 2 ** 31 - 1))
  adder.does<ChangeFlags>(command, (context, ids: string[]) =>
    changeEach(context, ids, async ({ jobs }, id) => {
      const { revision } = await jobs.retry(id, revisionOf(context.flags))
      return { id, state: 'ready', revision }
    }),
  )
}

function addCancel(adder: CommandAdder, parent: Parent): void {
  const command = adder.add(parent, 'cancel', {
    summary: 'Cancel jobs. A waiting job never starts; a running job is signalled, and its result is refused.',
    examples: ["pawl jobs cancel 3752613581234176001 --reason 'sent twice'"],
  })
  command
    .argument('<id...>', 'job ids')
    .option('--reason <text>', 'the reason, stored with the job')
    .option('--revision <number>', 'only if the job is still at this revision', wholeNumber(1, 2 ** 31 - 1))
    .option('-y, --yes', 'cancel running jobs without asking (it asks on a terminal only)')
  adder.does<ChangeFlags>(command, (context, ids: string[]) =>
    changeEach(context, ids, async (handle, id) => {
      if (!(await mayCancel(context, handle, id))) return { id, state: 'kept' }
      const { was } = await handle.jobs.cancel(id, {
        ...revisionOf(context.flags),
        ...(context.flags.reason ? { reason: context.flags.reason } : {}),
      })
      return { id, state: 'cancelled', was }
    }),
  )
}

async function mayCancel({ terminal, flags }: Context<ChangeFlags>, { jobs }: Tenant, id: string): Promise<boolean> {
  if (flags.yes || !terminal.canAsk) return true
  const job = await jobs.get(id)
  if (job?.state !== 'running') return true
  const reader = createInterface({ input: terminal.streams.stdin, output: terminal.streams.stderr })
  try {
    const answer = await reader.question(`Job ${id} (${oneLine(job.kind)}) is running on worker ${job.holder}. Cancel it? [y/N] `)
    return /^y(es)?$/i.test(answer.trim())
  } finally {
    reader.close()
  }
}

interface Changed {
  readonly id: string
  readonly state: string
  readonly was?: string
  readonly revision?: number
}

/** Each id is tried; the first failure decides the exit code. */
async function changeEach(
  context: Context<ChangeFlags>,
  ids: readonly string[],
  change: (handle: Tenant, id: string) => Promise<Changed>,
): Promise<number> {
  const { terminal, flags } = context
  if (flags.revision !== undefined && ids.length > 1)
    throw new UsageError(`--revision needs exactly one job, got ${ids.length}.`, 'change one job at a time')
  const changed: Changed[] = []
  let exit: number = exitCodes.ok
  await open(context, async (handle) => {
    for (const id of ids) {
      try {
        changed.push(await change(handle, id))
      } catch (error) {
        const failure = failureOf(error)
        if (failure.exit === exitCodes.unavailable || failure.code === 'PAWL_SCHEMA_MISSING') throw error
        reportFailure(terminal, error)
        if (exit === exitCodes.ok) exit = failure.exit
      }
    }
  })
  if (terminal.output === 'jsonl') for (const item of changed) terminal.json(item)
  else if (terminal.output === 'json') terminal.json({ items: changed })
  else {
    terminal.table<Changed>(
      [
        { title: 'id', value: ({ id }) => id },
        { title: 'state', value: ({ state }) => state, paint: ({ state }) => stateColours[state as JobState] },
        ...(changed.some(({ was }) => was !== undefined) ? [{ title: 'was', value: ({ was }: Changed) => was ?? '' }] : []),
      ],
      changed,
    )
  }
  return exit
}

function revisionOf({ revision }: ChangeFlags): { revision?: number } {
  return revision === undefined ? {} : { revision }
}

// ---- why

function addWhy(adder: CommandAdder, parent: Parent): void {
  const command = adder.add(parent, 'why', {
    summary: 'Explain why a job is not running, or how it ended.',
    examples: ['pawl jobs why 3752613581234176001'],
  })
  command.argument('<id>', 'the job id')
  adder.does(command, async (context, id: string) => {
    const why: Why = await open(context, ({ jobs }) => jobs.why(id))
    if (context.terminal.output !== 'table') return context.terminal.json(why)
    context.terminal.pairs([
      ['state', why.state, stateColours[why.state]],
      ...why.reasons.map(({ text }) => ['why', oneLine(text)] as const),
    ])
  })
}

// ---- arguments

export function wholeNumber(min: number, max: number): (text: string) => number {
  return (text) => {
    const value = Number(text)
    if (text.trim() !== '' && Number.isInteger(value) && value >= min && value <= max) return value
    throw new InvalidArgumentError(`It must be an integer from ${min} to ${max}.`)
  }
}

function time(text: string): Date {
  const value = new Date(text)
  if (!Number.isNaN(value.getTime())) return value
  throw new InvalidArgumentError('It must be a time such as 2030-01-31T08:00:00Z.')
}

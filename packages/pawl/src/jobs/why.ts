// Why a job is not running. Each reason is one term of the claim's predicate, read from the same columns.

import { type Statement, statement, type Values } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import type { JobState } from './types.ts'

const whyStatement = statement(import.meta.url, 'why')
const kindsShown = 10

export interface Why {
  readonly id: string
  readonly state: JobState
  readonly reasons: readonly { readonly code: string; readonly text: string }[]
}

interface Row {
  state: JobState
  kind: string
  queue: string
  run_at: Date | null
  attempt: number
  crashes: number
  snoozes: number
  suspect: boolean
  is_deciding: boolean
  alone_with: number | null
  last_error: string | null
  finished_at: Date | null
  holder: number | null
  holder_name: string | null
  holder_closed: string | null
  /** Queues of running workers that define its kind. */
  kind_queues: readonly string[]
  /** Those of running workers, cut after one more than is shown. */
  running_kinds: readonly string[]
  is_queue_worked: boolean
  is_kind_known: boolean
  ahead: number
  /** How often in a row no process could empty itself to run it alone. */
  postponed: number
}

type Read = <Found>(query: Statement, values: Values) => Promise<Found[]>

export async function explain(read: Read, tenant: string, id: string): Promise<Why> {
  const [row] = await read<Row>(whyStatement, { tenant, id, kinds: kindsShown + 1 })
  if (row === undefined) throw new PawlError('PAWL_NOT_FOUND', `There is no job ${id}.`, { details: { id } })
  return { id, state: row.state, reasons: [...reasonsOf(row)].map(([code, text]) => ({ code, text })) }
}

function* reasonsOf(row: Row): Generator<[code: string, text: string]> {
  if (row.state === 'done') yield ['done', `It finished at ${row.finished_at?.toISOString()}.`]
  if (row.state === 'cancelled')
    yield ['cancelled', `It was cancelled at ${row.finished_at?.toISOString()}${row.last_error ? `: ${row.last_error}` : ''}.`]
  if (row.state === 'dead')
    yield [
      'dead',
      `It is dead after ${row.attempt} attempt(s) and ${row.crashes} crash(es): ${sentence(firstLine(row.last_error))} Retry it with 'pawl jobs retry'.`,
    ]
  if (row.state === 'scheduled') yield* scheduledReasons(row)
  if (row.state === 'running') yield* runningReasons(row)
  if (row.state === 'ready') yield* readyReasons(row)
}

function* scheduledReasons(row: Row): Generator<[string, string]> {
  const hasFailed = row.attempt > row.crashes && row.postponed === 0
  yield [
    'scheduled',
    `It is scheduled for ${row.run_at?.toISOString()}${hasFailed ? `, after attempt ${row.attempt} failed: ${firstLine(row.last_error)}` : '.'}`,
  ]
  if (row.postponed > 0)
    yield [
      'postponed',
      `It must run alone, because its process died ${row.crashes} time(s) and one more crash would make it dead. ${row.postponed} time(s) in a row the worker that claimed it did not finish its other jobs in time.`,
    ]
  if (row.snoozes > 0)
    yield [
      'snoozed',
      `It was snoozed ${row.snoozes} time(s) without using an attempt${row.last_error ? `: ${firstLine(row.last_error)}` : '.'}`,
    ]
}

function* runningReasons(row: Row): Generator<[string, string]> {
  const holder = `Worker ${row.holder} (${row.holder_name})`
  if (row.holder_closed === null && row.is_deciding)
    yield [
      'alone',
      `${holder} holds it and runs nothing else beside it: its process died ${row.crashes} time(s), and one more crash would make it dead.`,
    ]
  else if (row.holder_closed === null) yield ['running', `${holder} holds it.`]
  else
    yield [
      'rescue',
      `Worker ${row.holder} (${row.holder_name}) is gone (${row.holder_closed}); the next sweep takes over the job.`,
    ]
}

function* readyReasons(row: Row): Generator<[string, string]> {
  if (!row.is_queue_worked)
    yield ['queue-not-worked', `No running worker works the queue '${row.queue}'. ${elsewhere(row) ?? start(row)}`]
  else if (!row.is_kind_known)
    yield [
      'kind-unknown',
      `No running worker on '${row.queue}' defines the kind '${row.kind}'. ${elsewhere(row) ?? 'Deploy one that does.'}`,
    ]
  if (row.is_deciding)
    yield [
      'suspect',
      `Its process died ${row.crashes} time(s) while it may have been running, and one more crash would make it dead. It waits for a worker that runs nothing else${row.alone_with === null ? '' : `; worker ${row.alone_with} is doing that for another job`}.`,
    ]
  else if (row.suspect)
    yield [
      'suspect',
      `Its process died ${row.crashes} time(s) while it may have been running. It waits for a free slot; such jobs may use only some of the slots of each process.`,
    ]
  if (row.ahead > 0 && !row.suspect)
    yield ['behind', `${row.ahead >= 1000 ? 'At least 1000' : row.ahead} job(s) are ahead of it in '${row.queue}'.`]
  if (row.is_queue_worked && row.is_kind_known && !row.suspect && row.ahead === 0)
    yield ['next', 'It is next: a worker takes it as soon as a slot is free.']
}

/** Most often the job was added without the queue of its kind. */
function elsewhere({ kind, kind_queues: queues }: Row): string | undefined {
  if (queues.length === 0) return undefined
  return `Workers run '${kind}' from ${queues.map((queue) => `'${queue}'`).join(', ')}: cancel this job and add it there.`
}

function start({ kind, running_kinds: kinds }: Row): string {
  if (kinds.length === 0) return `Start one that defines the kind '${kind}'.`
  const shown = kinds.slice(0, kindsShown).map((each) => `'${each}'`)
  if (kinds.length > kindsShown) shown.push('...')
  return `None defines the kind '${kind}' (running kinds: ${shown.join(', ')}). Start one that does.`
}

function sentence(text: string): string {
  return /[.!?]$/.test(text) ? text : `${text}.`
}

function firstLine(text: string | null): string {
  return (text ?? 'no error was recorded.').split('\n')[0]!
}

// Why a job is not running. Each reason is one term of the claim's predicate, read from the same columns.

import { type Parameter, type Statement, statement } from '../db/statement.ts'
import { PawlError } from '../errors.ts'
import type { JobState } from './types.ts'

const whyStatement = statement(import.meta.url, 'why')

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
  is_queue_worked: boolean
  is_kind_known: boolean
  ahead: number
  /** How often in a row no process could empty itself to run it alone. */
  postponed: number
}

type Read = <Found>(query: Statement, values: Readonly<Record<string, Parameter>>) => Promise<Found[]>

export async function explain(read: Read, tenant: string, id: string): Promise<Why> {
  const [row] = await read<Row>(whyStatement, { tenant, id })
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
      `It is dead after ${counted(row.attempt, 'attempt')}${row.crashes === 0 ? '' : `, its process having died ${counted(row.crashes, 'time')}`}: ${sentence(firstLine(row.last_error))} Retry it with 'pawl jobs retry'.`,
    ]
  if (row.state === 'scheduled') yield* scheduledReasons(row)
  if (row.state === 'running') yield* runningReasons(row)
  if (row.state === 'ready') yield* readyReasons(row)
}

function* scheduledReasons(row: Row): Generator<[string, string]> {
  const hasFailed = row.attempt > row.crashes && row.postponed === 0
  yield [
    'scheduled',
    `It waits for ${row.run_at?.toISOString()}${hasFailed ? `, after attempt ${row.attempt} failed: ${firstLine(row.last_error)}` : '.'}`,
  ]
  if (row.postponed > 0)
    yield [
      'postponed',
      `Its process died ${counted(row.crashes, 'time')}, and another crash would be its last, so it must run alone: ${counted(row.postponed, 'time')} in a row no process could empty itself for it.`,
    ]
  if (row.snoozes > 0)
    yield [
      'snoozed',
      `It was put off ${counted(row.snoozes, 'time')} without an attempt${row.last_error ? `: ${firstLine(row.last_error)}` : '.'}`,
    ]
}

function* runningReasons(row: Row): Generator<[string, string]> {
  const holder = `Worker ${row.holder} (${row.holder_name})`
  if (row.holder_closed === null && row.is_deciding)
    yield [
      'alone',
      `${holder} has it, and empties itself for it or is a process for it: its process died ${counted(row.crashes, 'time')}, and another crash would be its last. Nothing runs beside it.`,
    ]
  else if (row.holder_closed === null) yield ['running', `${holder} has it.`]
  else
    yield [
      'rescue',
      `Worker ${row.holder} (${row.holder_name}) is gone (${row.holder_closed}); the next sweep takes the job over.`,
    ]
}

function* readyReasons(row: Row): Generator<[string, string]> {
  if (!row.is_queue_worked) yield ['queue-not-worked', `No running worker works the queue '${row.queue}'. Start one.`]
  else if (!row.is_kind_known)
    yield ['kind-unknown', `No running worker on '${row.queue}' defines the kind '${row.kind}'. Deploy one that does.`]
  if (row.is_deciding)
    yield [
      'suspect',
      `Its process died while it may have run (${counted(row.crashes, 'time')}), and another crash would be its last. It waits for a worker that has nothing beside it${row.alone_with === null ? '' : `; now worker ${row.alone_with} does so for another job`}.`,
    ]
  else if (row.suspect)
    yield [
      'suspect',
      `Its process died while it may have run (${counted(row.crashes, 'time')}). It waits for a free slot. Jobs like it may take only a part of each process's slots.`,
    ]
  if (row.ahead > 0 && !row.suspect)
    yield ['behind', `Ahead of it in '${row.queue}': ${row.ahead >= 1000 ? 'at least 1000' : counted(row.ahead, 'job')}.`]
  if (row.is_queue_worked && row.is_kind_known && !row.suspect && row.ahead === 0)
    yield ['next', 'It is next; a worker takes it as soon as one has a free slot.']
}

function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`
}

function sentence(text: string): string {
  return /[.!?]$/.test(text) ? text : `${text}.`
}

function firstLine(text: string | null): string {
  return (text ?? 'no error was recorded.').split('\n')[0]!
}

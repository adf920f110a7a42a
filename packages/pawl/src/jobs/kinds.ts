// The kinds of job that this process knows: how each is validated, retried, limited and run.

import type { Durability } from '../config.ts'
import type { Statement, Values } from '../db/statement.ts'
import { isPawlError, NonRetryable } from '../errors.ts'
import { type Resolved, refused, resolve } from '../kernel/options.ts'
import { invalid } from '../kernel/payload.ts'
import { type Backoff, backoffMs, mayRetry } from '../kernel/retry.ts'
import { assertUsers, checkKind, handlerTable, kindTable } from './options.ts'
import type { DefineOptions, Handler, KindOptions, StandardSchema } from './types.ts'

/** The defaults of a kind, and the limits of kinds that this process does not define. */
export const kindDefaults = resolve('define', kindTable, {})

/** Of what a schema finds wrong, a message names this many. */
const issuesShown = 5

export interface DefinedKind {
  readonly name: string
  readonly queue: string
  readonly schema: StandardSchema | undefined
  readonly payloadVersion: number
  readonly upgrade: KindOptions<unknown>['upgrade']
  readonly concurrency: number
  readonly timeoutMs: number
  readonly attempts: number
  readonly crashes: number
  readonly backoff: Backoff
  readonly when: ((error: unknown) => boolean) | undefined
  readonly durability: Durability | undefined
  readonly onDead: KindOptions<unknown>['onDead']
  readonly run: DefineOptions<unknown>['run']
  readonly tx: DefineOptions<unknown>['tx']
  readonly share: number
  readonly settleWith?: SettleWith
}

/**
 * How a capability settles its jobs together with rows of its own. The statements have the parameters of settle, settle-failed, complete and
 * guard, and those of `values`. A job that `done` or `dead` leaves held under its fence is settled again a little later.
 */
export interface SettleWith {
  readonly done: Statement
  readonly dead: Statement
  readonly complete: Statement
  readonly guard: Statement
  readonly values: (attempts: readonly { readonly payload: unknown }[]) => Values
  /** What log lines name beside job and kind. */
  readonly about: (payload: unknown) => Readonly<Record<string, unknown>>
  /** Their settles are committed. Resolves, always, when what follows them is enqueued: until then the worker is not idle. */
  readonly settled: (attempts: readonly { readonly tenant: string; readonly payload: unknown }[]) => Promise<unknown>
}

export function defineKind(name: string, given: DefineOptions<never>, isPawls = false, settleWith?: SettleWith): DefinedKind {
  const call = `define('${checkKind('define', name, isPawls)}')`
  const options = resolve(call, kindTable, given)
  const { retry } = options
  if (!isPawls) assertUsers(call, 'queue', options.queue)
  if (options.upgrade !== undefined && options.payloadVersion === 1)
    throw refused(call, "upgrade needs payloadVersion: set it to 2 when the payload's shape first changes")
  const { attempts, crashes, initialMs, factor, maxMs, jitter, when } = retry
  if (maxMs < initialMs)
    throw refused(call, `retry.maxMs must be at least retry.initialMs (${initialMs}), got ${maxMs}`, { option: 'retry.maxMs' })
  return {
    name,
    queue: options.queue,
    schema: options.schema as StandardSchema | undefined,
    payloadVersion: options.payloadVersion,
    upgrade: options.upgrade,
    concurrency: options.concurrency,
    timeoutMs: options.timeout,
    attempts,
    crashes,
    backoff: { initialMs, factor, maxMs, jitter },
    when,
    durability: options.durability,
    onDead: options.onDead,
    ...handlerOf(call, options),
    ...(settleWith === undefined ? {} : { settleWith }),
  }
}

type HandlerParts = Pick<DefinedKind, 'run' | 'tx' | 'share'>

/** The kind with the handler that `handle` was given. */
export function withHandler(kind: DefinedKind, given: Handler<never>): DefinedKind {
  const call = `handle('${kind.name}')`
  const handler = handlerOf(call, resolve(call, handlerTable, given))
  if (handler.run === undefined && handler.tx === undefined) throw refused(call, 'give a handler: run or tx')
  return { ...kind, ...handler }
}

export function hasHandler({ run, tx }: DefinedKind): boolean {
  return run !== undefined || tx !== undefined
}

function handlerOf(call: string, { run, tx, share }: Resolved<typeof handlerTable>): HandlerParts {
  if (run !== undefined && tx !== undefined) throw refused(call, 'give a handler: either run or tx, not both')
  if (share !== undefined && tx === undefined)
    throw refused(call, 'share is for tx handlers: leave it out, or use tx in place of run')
  return { run: run as HandlerParts['run'], tx: tx as HandlerParts['tx'], share: share ?? 1 }
}

/** What a schema checks: the payload of a kind, unless a capability calls it otherwise. */
export interface Checked extends Pick<DefinedKind, 'name' | 'schema'> {
  readonly noun?: string
}

/**
 * At enqueue: refuses what the run could not parse. The input is stored as given, so the schema reads what JSON gives back of it; a schema
 * that takes a Date and not the string that JSON makes of it is found here and not in a dead job.
 */
export async function assertParses(checked: Checked, input: unknown, stored: string): Promise<void> {
  try {
    await parse(checked, JSON.parse(stored))
  } catch (error) {
    const isValidAsGiven = await Promise.resolve(parse(checked, input)).then(
      () => true,
      () => false,
    )
    if (!isValidAsGiven || !isPawlError(error)) throw error
    const { name, noun = 'payload' } = checked
    throw invalid(
      `The ${noun} of '${name}' is valid as given, but not after it is stored as JSON: ${noun}`,
      String(error.details.path ?? ''),
      `${String(error.details.reason)}. Make the schema accept the stored JSON, for example with z.coerce.date() for a date`,
      ': ',
    )
  }
}

export function parse(checked: Checked, payload: unknown): unknown {
  if (checked.schema === undefined) return payload
  const result = checked.schema['~standard'].validate(payload)
  return result instanceof Promise ? result.then((answer) => unwrap(checked, answer)) : unwrap(checked, result)
}

function unwrap(
  { name, noun = 'payload' }: Checked,
  result: Awaited<ReturnType<StandardSchema['~standard']['validate']>>,
): unknown {
  if (result.issues === undefined) return result.value
  const [first, ...others] = result.issues.slice(0, issuesShown).map((issue) => ({
    path: (issue.path ?? []).map((part) => `.${String(typeof part === 'object' ? part.key : part)}`).join(''),
    message: issue.message,
  }))
  const more = result.issues.length - 1 - others.length
  const rest = others.map(({ path, message }) => `; ${noun}${path}: ${message}`).join('') + (more > 0 ? `; and ${more} more` : '')
  const reason = `${first?.message ?? 'does not match its schema'}${rest}`
  throw invalid(`The ${noun} of '${name}' is not valid: ${noun}`, first?.path ?? '', reason, ': ')
}

/** At run: what an old payload has become, upgraded to the current shape, and parsed. A fault makes the job dead without a retry. */
export function readPayload(kind: DefinedKind, payload: unknown, version: number): unknown {
  if (version > kind.payloadVersion) {
    throw invalid(
      `The payload of '${kind.name}'`,
      '',
      `has version ${version}, but this worker knows versions up to ${kind.payloadVersion}: deploy the newer code`,
    )
  }
  if (version === kind.payloadVersion) return parse(kind, payload)
  if (kind.upgrade === undefined) {
    throw invalid(
      `The payload of '${kind.name}'`,
      '',
      `has version ${version}, and define('${kind.name}') has payloadVersion ${kind.payloadVersion} and no upgrade: give it one (upgrade: (payload) => payload if the handler reads both), then retry the job`,
    )
  }
  const upgraded = kind.upgrade(payload, version)
  return isThenable(upgraded) ? Promise.resolve(upgraded).then((value) => parse(kind, value)) : parse(kind, upgraded)
}

function isThenable(value: unknown): value is PromiseLike<unknown> {
  return typeof (value as { then?: unknown } | null | undefined)?.then === 'function'
}

/** The delay before the next attempt, or undefined when there is none: the error is final or the attempts are used up. */
export function retryDelayMs(
  kind: DefinedKind,
  row: { attempt: number; crashes: number; max_attempts: number | null },
  error: unknown,
  onHookError?: (thrown: unknown) => void,
): number | undefined {
  const failures = Math.max(1, row.attempt - row.crashes)
  if (error instanceof NonRetryable || !mayRetry(kind, error, onHookError)) return undefined
  if (failures >= (row.max_attempts ?? kind.attempts)) return undefined
  return Math.max(1, backoffMs(kind.backoff, failures))
}

// The kinds of job that this process knows: how each is validated, retried, limited and run.

import { assertKnown, between, type Durability, durabilities, notOneOf, whole } from '../config.ts'
import { isPawlError, NonRetryable, PawlError } from '../errors.ts'
import { delayMsMax, durationMs } from '../kernel/clock.ts'
import { type Backoff, backoffMs, mayRetry } from '../kernel/retry.ts'
import { invalid } from './payload.ts'
import type { DefineOptions, KindOptions, StandardSchema } from './types.ts'

export const kindDefaults = {
  queue: 'default',
  timeoutMs: 15 * 60_000,
  attempts: 10,
  crashes: 3,
  backoff: { initialMs: 1000, factor: 2, maxMs: 3_600_000, jitter: true },
} as const

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
  readonly settleEach: boolean
  readonly onDead: KindOptions<unknown>['onDead']
  readonly run: DefineOptions<unknown>['run']
  readonly tx: DefineOptions<unknown>['tx']
  readonly share: number
}

const knownOptions = new Set([
  'schema',
  'payloadVersion',
  'upgrade',
  'queue',
  'concurrency',
  'timeout',
  'retry',
  'durability',
  'settleEach',
  'onDead',
  'run',
  'tx',
  'share',
])
const knownRetry = new Set(['attempts', 'crashes', 'initialMs', 'factor', 'maxMs', 'jitter', 'when'])

export function defineKind(name: string, options: DefineOptions<never>): DefinedKind {
  assertKnown(`define('${name}')`, options, knownOptions)
  assertKnown(`define('${name}').retry`, options.retry ?? {}, knownRetry)
  if (name.length === 0 || name.length > 200) throw new PawlError('PAWL_CONFIG', 'The name of a kind has 1 to 200 characters.')
  if ((options.run === undefined) === (options.tx === undefined)) {
    throw new PawlError('PAWL_CONFIG', `define('${name}') needs a handler: either run or tx, not both.`)
  }
  if (options.durability !== undefined && !durabilities.includes(options.durability))
    throw notOneOf('durability', options.durability, durabilities)
  const retry = options.retry ?? {}
  return {
    name,
    queue: options.queue ?? kindDefaults.queue,
    schema: options.schema as StandardSchema | undefined,
    payloadVersion: whole('payloadVersion', options.payloadVersion ?? 1, 1, 32_767),
    upgrade: options.upgrade,
    concurrency: whole('concurrency', options.concurrency ?? 10_000, 1, 10_000),
    timeoutMs: whole('timeout', durationMs(options.timeout ?? kindDefaults.timeoutMs), 1, 30 * 86_400_000),
    attempts: whole('retry.attempts', retry.attempts ?? kindDefaults.attempts, 1, 1_000_000),
    crashes: whole('retry.crashes', retry.crashes ?? kindDefaults.crashes, 1, 1000),
    backoff: {
      initialMs: whole('retry.initialMs', retry.initialMs ?? kindDefaults.backoff.initialMs, 0, delayMsMax),
      factor: between('retry.factor', retry.factor ?? kindDefaults.backoff.factor, 1, 1000),
      maxMs: whole('retry.maxMs', retry.maxMs ?? kindDefaults.backoff.maxMs, 0, delayMsMax),
      jitter: retry.jitter ?? kindDefaults.backoff.jitter,
    },
    when: retry.when,
    durability: options.durability,
    settleEach: options.settleEach ?? false,
    onDead: options.onDead,
    run: options.run as DefinedKind['run'],
    tx: options.tx as DefinedKind['tx'],
    share: whole('share', options.share ?? 1, 1, 100),
  }
}

/**
 * At enqueue: refuses what the run could not parse. The input is stored as given, so the schema reads what JSON gives back of it; a schema
 * that takes a Date and not the string that JSON makes of it is found here and not in a dead job.
 */
export async function assertParses(kind: DefinedKind, input: unknown, stored: string): Promise<void> {
  try {
    await parse(kind, JSON.parse(stored))
  } catch (error) {
    const isValidAsGiven = await Promise.resolve(parse(kind, input)).then(
      () => true,
      () => false,
    )
    if (!isValidAsGiven || !isPawlError(error)) throw error
    throw invalid(
      `The payload of '${kind.name}' is valid as given, but not as the JSON that is stored: payload`,
      String(error.details.path ?? ''),
      `${String(error.details.reason)}. Let the schema read what JSON stores, such as z.coerce.date() for a date`,
    )
  }
}

function parse(kind: DefinedKind, payload: unknown): unknown {
  if (kind.schema === undefined) return payload
  const result = kind.schema['~standard'].validate(payload)
  return result instanceof Promise ? result.then((answer) => unwrap(kind, answer)) : unwrap(kind, result)
}

function unwrap(kind: DefinedKind, result: Awaited<ReturnType<StandardSchema['~standard']['validate']>>): unknown {
  if (result.issues === undefined) return result.value
  const issue = result.issues[0]
  const path = (issue?.path ?? []).map((part) => `.${String(typeof part === 'object' ? part.key : part)}`).join('')
  throw invalid(`The payload of '${kind.name}' is not valid: payload`, path, `${issue?.message ?? 'does not match its schema'}`)
}

/** At run: what an old payload has become, upgraded to the current shape, and parsed. A fault makes the job dead without a retry. */
export function readPayload(kind: DefinedKind, payload: unknown, version: number): unknown {
  if (version > kind.payloadVersion) {
    throw invalid(
      `The payload of '${kind.name}'`,
      '',
      `has version ${version}, and this worker knows ${kind.payloadVersion}: deploy the newer release`,
    )
  }
  if (version === kind.payloadVersion || kind.upgrade === undefined) return parse(kind, payload)
  return parse(kind, kind.upgrade(payload, version))
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

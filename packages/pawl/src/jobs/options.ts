// The options of jobs, as tables. docs/guides/jobs.md tells how to use them.

import { durabilities } from '../config.ts'
import { PawlError, shown } from '../errors.ts'
import { delayMsMax } from '../kernel/clock.ts'
import {
  anyText,
  boolean,
  callback,
  check,
  duration,
  integer,
  list,
  nested,
  number,
  oneOf,
  option,
  record,
  refused,
  required,
  signal,
  type TableOf,
  text,
  time,
  transaction,
} from '../kernel/options.ts'
import { finalStates, liveStates } from './states.ts'
import type {
  CancelOptions,
  ChangeOptions,
  DefineOptions,
  EnqueueOptions,
  Handler,
  ListOptions,
  RetryPolicy,
  StandardSchema,
  StopOptions,
  WorkerOptions,
} from './types.ts'

const kindName = required(text({ to: 200, doc: 'The name of a kind.' }))
const queueName = (doc: string) => text({ to: 100, doc })

export const retryTable = {
  attempts: integer({ from: 1, to: 1_000_000, default: 10, doc: 'How often it may fail before it is dead.' }),
  crashes: integer({ from: 1, to: 1000, default: 3, doc: 'How often its process may die under it before it is dead.' }),
  initialMs: integer({ from: 0, to: delayMsMax, default: 1000, doc: 'The delay before the first retry.' }),
  factor: number({ from: 1, to: 1000, default: 2, doc: 'By how much the delay grows from one retry to the next.' }),
  maxMs: integer({ from: 0, to: delayMsMax, default: 3_600_000, doc: 'The longest delay.' }),
  jitter: boolean({ default: true, doc: 'true: anything from 0 to the delay. false: exactly the delay.' }),
  when: callback<NonNullable<RetryPolicy['when']>>({ doc: 'false: this error is of no use to retry.' }),
} satisfies TableOf<RetryPolicy>

export const handlerTable = {
  run: callback<NonNullable<DefineOptions<never>['run']>>({ doc: 'The handler: effects anywhere, at least once.' }),
  tx: callback<NonNullable<DefineOptions<never>['tx']>>({ doc: 'The handler: effects through its transaction, exactly once.' }),
  share: integer({ from: 1, to: 100, otherwise: '1', doc: 'How many jobs of a tx kind may share one transaction.' }),
} satisfies TableOf<Handler<never>>

export const kindTable = {
  schema: option<StandardSchema<never>>(
    'a Standard Schema (zod, valibot, arktype and others)',
    { doc: 'What a payload must be; checked at enqueue and at run.' },
    isStandardSchema,
  ),
  payloadVersion: integer({ from: 1, to: 32_767, default: 1, doc: "Raise it when the payload's shape changes." }),
  upgrade: callback<NonNullable<DefineOptions<never>['upgrade']>>({ doc: 'Brings a payload of an older version up to date.' }),
  queue: text({ to: 100, default: 'default', doc: 'The queue of its jobs.' }),
  concurrency: integer({ from: 1, to: 10_000, default: 10_000, doc: 'How many of this kind one process runs at once.' }),
  timeout: duration({ from: 1, to: 30 * 86_400_000, default: '15m', doc: 'How long one attempt may run.' }),
  retry: nested(retryTable, { doc: 'What follows a failure.' }),
  durability: oneOf(durabilities, { otherwise: 'that of createPawl', doc: 'How far the commit of its end must have gone.' }),
  settleEach: boolean({ default: false, doc: 'true: each job is settled when it ends and not with others. Slower.' }),
  onDead: callback<NonNullable<DefineOptions<never>['onDead']>>({
    doc: 'Called in the process that noticed that a job is dead.',
  }),
  ...handlerTable,
} satisfies TableOf<DefineOptions<never>>

export const workerTable = {
  name: text({ to: 200, otherwise: "the host's name and the process id", doc: 'Shown in lists.' }),
  queues: list(queueName('The name of a queue.'), { otherwise: 'the queues of the kinds', doc: 'The queues it works.' }),
  concurrency: integer({ from: 1, to: 10_000, default: 20, doc: 'Handlers at once in this process.' }),
  batchMax: integer({ from: 1, to: 5000, default: 1000, doc: 'The most jobs one claim takes; it adapts below this.' }),
  lease: duration({ from: 100, to: 3_600_000, default: '30s', doc: 'How long the lease of a hung process lasts.' }),
  beatMs: integer({
    from: 10,
    to: 900_000,
    otherwise: 'a quarter of the lease',
    doc: 'How often the lease is renewed and the main thread is watched, for tests.',
  }),
  pollMs: integer({
    from: 10,
    to: 3_600_000,
    default: 2000,
    doc: 'The longest wait between two polls, or 2 ms for each queue of each limited kind if that is longer.',
  }),
  bufferMs: integer({
    from: 10,
    to: 3_600_000,
    default: 10_000,
    doc: 'The longest a claimed job may wait here before it starts.',
  }),
  touchMs: integer({
    from: 1,
    to: 3_600_000,
    default: 5000,
    doc: 'How often progress is stored. A third of the lease, if that is less.',
  }),
  handlerConnectionsMax: integer({ from: 1, to: 10_000, otherwise: 'the concurrency', doc: 'Connections for tx handlers.' }),
  exitWhenBlocked: boolean({ default: false, doc: 'End the process when a handler still blocks it after its timeout.' }),
  keepDays: integer({ from: 1, to: 36_500, default: 14, doc: 'Days that finished jobs stay.' }),
  deciding: oneOf(['alone', 'leave', 'only'], {
    default: 'alone',
    doc: 'Jobs whose next crash would be their last: run them alone, leave them, or claim only them.',
  }),
} satisfies TableOf<WorkerOptions>

export const stopTable = {
  grace: duration({ from: 0, to: 86_400_000, default: '20s', doc: 'How long running handlers get.' }),
  signal: signal({ doc: 'Ends the grace early.' }),
  abandon: boolean({ default: false, doc: 'The process ends after this: what still runs then is given up at once.' }),
} satisfies TableOf<StopOptions>

export const enqueueTable = {
  tx: transaction({ doc: 'Your own transaction: the job is there if and only if it commits.' }),
  runAt: time({ doc: 'When it is due. Not with delay.' }),
  delay: duration({ from: 0, to: delayMsMax, doc: 'How long after the enqueue it is due. Not with runAt.' }),
  priority: integer({ from: -100, to: 100, default: 0, doc: 'A point is worth a minute of waiting.' }),
  maxAttempts: integer({ from: 1, to: 1_000_000, otherwise: 'retry.attempts of its kind', doc: 'How often it may fail.' }),
  queue: text({ to: 100, otherwise: 'the queue of its kind', doc: 'The queue that it waits in.' }),
  headers: record({ doc: 'What travels with the payload, such as a trace id.' }),
  durability: oneOf(durabilities, {
    otherwise: 'that of createPawl',
    doc: 'How far its commit must have gone. Never lowers yours.',
  }),
  wake: boolean({ default: true, doc: 'false: no notification. Needed before PREPARE TRANSACTION.' }),
} satisfies TableOf<EnqueueOptions>

export const listTable = {
  state: oneOf([...liveStates, ...finalStates], { otherwise: 'all but done and cancelled', doc: 'Only jobs in this state.' }),
  kind: text({ to: 200, doc: 'Only jobs of this kind.' }),
  queue: queueName('Only jobs of this queue.'),
  limit: integer({ from: 1, to: 500, default: 50, doc: 'The size of a page.' }),
  before: anyText('The id that ended the last page.'),
} satisfies TableOf<ListOptions>

export const changeTable = {
  revision: integer({ from: 0, to: 2_147_483_647, doc: 'Change it only if it is still at this revision.' }),
  tx: transaction({ doc: 'Your own transaction.' }),
  wake: boolean({ default: true, doc: 'false: no notification. Needed before PREPARE TRANSACTION.' }),
} satisfies TableOf<ChangeOptions>

export const cancelTable = {
  ...changeTable,
  reason: text({ from: 0, to: 2000, doc: 'Kept with the job.' }),
} satisfies TableOf<CancelOptions>

/** The kind's name. Names that begin with `pawl.` are kept for Pawl's own work. */
export function checkKind(call: string, kind: unknown, mayReserved: boolean): string {
  const name = check(call, 'kind', kindName, typeof kind === 'object' && kind !== null ? (kind as { name?: unknown }).name : kind)
  if (!mayReserved) assertUsers(call, 'kind', name)
  return name
}

/** The queue of a handle, which may be of a kind that only another Pawl defines. */
export function queueOf(call: string, kind: unknown): string | undefined {
  const isHandle = typeof kind === 'object' && kind !== null
  return isHandle
    ? check(call, 'kind.queue', queueName('The queue of its kind.'), (kind as { queue?: unknown }).queue)
    : undefined
}

export function assertUsers(call: string, what: string, name: string | undefined): void {
  if (name?.startsWith('pawl.'))
    throw refused(call, `${what} must not begin with 'pawl.', which is kept for Pawl's own jobs, got ${shown(name)}`, {
      option: what,
    })
}

/** A number of JavaScript is refused: it would round a bigint. */
export function checkJobId(call: string, id: unknown): string {
  const given = check(call, 'id', required(anyText('The id of a job.')), id)
  if (/^\d{1,19}$/.test(given) && BigInt(given) < 2n ** 63n) return given
  throw new PawlError('PAWL_NOT_FOUND', `${shown(given)} is not the id of a job: ids are numbers of up to 19 digits.`)
}

function isStandardSchema(given: unknown): boolean {
  const standard = (given as Partial<StandardSchema> | null | undefined)?.['~standard']
  return standard?.version === 1 && typeof standard.validate === 'function'
}

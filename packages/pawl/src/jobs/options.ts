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
  nested,
  number,
  type Option,
  oneOf,
  option,
  ownTx,
  record,
  refused,
  required,
  type TableOf,
  text,
  time,
  transaction,
  wake,
} from '../kernel/options.ts'
import { finalStates, openStates } from './states.ts'
import type { ChangeOptions, DefineOptions, EnqueueOptions, Handler, ListOptions, RetryPolicy, StandardSchema } from './types.ts'

const storedName = text({ to: 200, doc: 'The name of a kind.' })
const kindName = required<string | undefined>({
  ...storedName,
  expects: `${storedName.expects} without a space at either end`,
  accepts: (given) => storedName.accepts(given) && (given as string).trim() === given,
})
const queueName = (doc: string) => text({ to: 100, doc })

export const retryTable = {
  attempts: integer({ from: 1, to: 1_000_000, default: 10, doc: 'The number of failures after which a job is dead.' }),
  crashes: integer({ from: 1, to: 1000, default: 3, doc: 'The number of process crashes after which a job is dead.' }),
  initialMs: integer({ from: 0, to: delayMsMax, default: 1000, doc: 'The delay before the first retry.' }),
  factor: number({ from: 1, to: 1000, default: 2, doc: 'The factor by which the delay grows with each retry.' }),
  maxMs: integer({ from: 0, to: delayMsMax, default: 3_600_000, doc: 'The longest delay.' }),
  jitter: boolean({ default: true, doc: 'true: a random delay from 0 to the computed one. false: exactly the computed one.' }),
  when: callback<NonNullable<RetryPolicy['when']>>({ doc: 'Returns false for an error that must not be retried.' }),
} satisfies TableOf<RetryPolicy>

export const handlerTable = {
  run: callback<NonNullable<DefineOptions<never>['run']>>({
    doc: 'The handler. Its effects may be anywhere, and happen at least once.',
  }),
  tx: callback<NonNullable<DefineOptions<never>['tx']>>({
    doc: 'The handler. Its effects go through its transaction, and happen exactly once.',
  }),
  share: integer({
    from: 1,
    to: 100,
    otherwise: '1',
    doc: 'The maximum number of jobs of a tx kind that share one transaction.',
  }),
} satisfies TableOf<Handler<never>>

export const kindTable = {
  schema: standardSchema('The schema of the payload, checked at enqueue and at each run.'),
  payloadVersion: integer({ from: 1, to: 32_767, default: 1, doc: "Raise it when the payload's shape changes." }),
  upgrade: callback<NonNullable<DefineOptions<never>['upgrade']>>({
    doc: 'Converts a payload of an older version to the current one.',
  }),
  queue: text({ to: 100, default: 'default', doc: 'The queue of its jobs.' }),
  concurrency: integer({
    from: 1,
    to: 10_000,
    default: 10_000,
    doc: 'The maximum number of jobs of this kind that one process runs at once.',
  }),
  timeout: duration({ from: 1, to: 30 * 86_400_000, default: '15m', doc: 'How long one attempt may run.' }),
  retry: nested(retryTable, { doc: 'The retry policy.' }),
  durability: oneOf(durabilities, { otherwise: 'that of createPawl', doc: 'The durability of the commit that settles a job.' }),
  onDead: callback<NonNullable<DefineOptions<never>['onDead']>>({
    doc: 'Called when a job is dead, in the process that finds out.',
  }),
  ...handlerTable,
} satisfies TableOf<DefineOptions<never>>

export const enqueueTable = {
  tx: transaction({ doc: 'Your own transaction: the job exists if and only if it commits.' }),
  runAt: time({ doc: 'The time at which the job is due. Cannot be combined with delay.' }),
  delay: duration({ from: 0, to: delayMsMax, doc: 'How long after the enqueue the job is due. Cannot be combined with runAt.' }),
  priority: integer({ from: -100, to: 100, default: 0, doc: 'Each point counts as a minute of waiting.' }),
  maxAttempts: integer({
    from: 1,
    to: 1_000_000,
    otherwise: 'retry.attempts of its kind',
    doc: 'The number of failures after which the job is dead.',
  }),
  queue: text({ to: 100, otherwise: 'the queue of its kind', doc: 'The queue of the job.' }),
  headers: record({ doc: 'Metadata stored with the payload, such as a trace id.' }),
  durability: oneOf(durabilities, {
    otherwise: 'that of createPawl',
    doc: 'The durability of the commit. Never lowers that of your transaction.',
  }),
  wake,
} satisfies TableOf<EnqueueOptions>

export const listTable = {
  state: oneOf([...openStates, ...finalStates], { otherwise: 'all but done and cancelled', doc: 'Only jobs in this state.' }),
  kind: text({ to: 200, doc: 'Only jobs of this kind.' }),
  queue: queueName('Only jobs of this queue.'),
  limit: integer({ from: 1, to: 500, default: 50, doc: 'The size of a page.' }),
  after: anyText('`next` of the previous page.'),
} satisfies TableOf<ListOptions>

export const changeTable = {
  revision: integer({ from: 0, to: 2_147_483_647, doc: 'Change the job only if it is still at this revision.' }),
  by: text({ to: 200, doc: 'The acting person or program. With it the change is stored in pawl.audit.' }),
  reason: text({ from: 0, to: 2000, doc: 'The reason, stored with a cancelled job, and with `by` in pawl.audit.' }),
  tx: ownTx,
  wake,
} satisfies TableOf<ChangeOptions>

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
    throw refused(call, `${what} must not begin with 'pawl.', which is reserved for Pawl's own jobs, got ${shown(name)}`, {
      option: what,
    })
}

/** A number of JavaScript is refused: it would round a bigint. */
export function checkJobId(call: string, id: unknown): string {
  const given = check(call, 'id', required(anyText('The id of a job.')), id)
  if (/^\d{1,19}$/.test(given) && BigInt(given) < 2n ** 63n) return given
  throw new PawlError('PAWL_NOT_FOUND', `${shown(given)} is not a job id: ids are numbers of up to 19 digits.`)
}

export function standardSchema(doc: string): Option<StandardSchema<never> | undefined> {
  return option('a Standard Schema (zod, valibot, arktype and others)', { doc }, isStandardSchema)
}

function isStandardSchema(given: unknown): boolean {
  const standard = (given as Partial<StandardSchema> | null | undefined)?.['~standard']
  return standard?.version === 1 && typeof standard.validate === 'function'
}

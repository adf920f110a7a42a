// `pawl jobs ...`: list, inspect and change jobs.

import { type AttemptRow, type JobRow, type JobState, type ListedJob, PawlError } from 'pawl'
import { finalStates, openStates } from 'pawl/admin'
import { byFlag, changeEach, pageAnswer, pageFlags, revisionFlag } from '../answers.ts'
import { command, given, integer, type Noun, oneOf, text, time, toggle, withDefault } from '../command.ts'
import { withPawl } from '../database.ts'
import { type Column, firstLine, oneLine, type Paint, relativeTime, type Terminal } from '../terminal.ts'
import { readPayload } from './payload.ts'

const list = command({
  name: 'list',
  summary: 'List jobs, newest first: all but done and cancelled, or those in one state.',
  examples: ['pawl jobs list', 'pawl jobs list --state dead --kind email', 'pawl jobs list --state done -o jsonl'],
  flags: {
    state: oneOf('--state <state>', [...openStates, ...finalStates], 'only this state'),
    kind: text('--kind <kind>', 'only this kind'),
    queue: text('--queue <queue>', 'only this queue'),
    ...pageFlags,
  },
  run: async (context) => {
    const { state, kind, queue, limit, after } = context.flags
    const page = await withPawl(context, ({ jobs }) => jobs.list({ limit, ...given({ state, kind, queue, after }) }))
    const isFinished = state !== undefined && finalStates.includes(state)
    const empty =
      state === undefined
        ? "No live jobs. For finished jobs, run 'pawl jobs list --state done'."
        : `No ${state} jobs${kind ? ` of kind ${kind}` : ''}.`
    return pageAnswer(page, isFinished ? finishedColumns : liveColumns, empty)
  },
})

const stateColours: Readonly<Record<string, Paint | undefined>> = {
  scheduled: 'cyan',
  running: 'cyan',
  dead: 'red',
  done: 'green',
  cancelled: 'dim',
} satisfies Partial<Record<JobState, Paint>>

function stateText({ state, suspect }: ListedJob): string {
  return suspect ? `${state}, suspect` : state
}

const firstColumns: readonly Column<ListedJob>[] = [
  { title: 'id', value: ({ id }) => id },
  { title: 'kind', value: ({ kind }) => kind },
  { title: 'queue', value: ({ queue }) => queue },
  { title: 'state', value: stateText, paint: ({ state }) => stateColours[state] },
  { title: 'attempt', value: ({ attempt }) => String(attempt), isRight: true },
  { title: 'created', value: ({ createdAt }) => relativeTime(createdAt) },
]
const runs: Column<ListedJob> = { title: 'runs', value: ({ state, runAt }) => (state === 'scheduled' ? relativeTime(runAt) : '') }
const finished: Column<ListedJob> = { title: 'finished', value: ({ finishedAt }) => relativeTime(finishedAt) }
const lastError: Column<ListedJob> = { title: 'last error', value: ({ lastError: error }) => firstLine(error) }
const liveColumns = [...firstColumns, runs, lastError]
const finishedColumns = [...firstColumns, finished, lastError]

const get = command({
  name: 'get',
  summary: 'Show one job with its payload, result and attempts.',
  examples: ['pawl jobs get 3752613581234176001'],
  args: [['<id>', 'the job id']],
  run: async (context, id: string) => {
    const [job, attempts] = await withPawl(context, async ({ jobs }) => [await jobs.get(id), await jobs.attempts(id)])
    if (job === undefined)
      throw new PawlError(
        'PAWL_NOT_FOUND',
        `There is no job ${oneLine(id)}${context.tenant ? ` of tenant '${context.tenant}'` : ''}.`,
      )
    return { json: { ...job, attempts }, show: (terminal) => showJob(terminal, job, attempts) }
  },
})

function showJob(terminal: Terminal, job: JobRow, attempts: readonly AttemptRow[]): void {
  const shown = (value: number | string | null | undefined): string => oneLine(String(value ?? ''))
  const at = (value: Date | null): string => (value === null ? '' : `${value.toISOString()} (${relativeTime(value)})`)
  const json = (value: unknown): string => (value === null || value === undefined ? '' : oneLine(JSON.stringify(value)))
  const pairs: [string, string, (Paint | undefined)?][] = [
    ['id', job.id, 'bold'],
    ['kind', shown(job.kind)],
    ['queue', shown(job.queue)],
    ['tenant', shown(job.tenant)],
    ['state', stateText(job), stateColours[job.state]],
    ['attempt', job.maxAttempts === null ? shown(job.attempt) : `${job.attempt} of ${job.maxAttempts}`],
    ['crashes', shown(job.crashes || null)],
    ['snoozes', shown(job.snoozes || null)],
    ['revision', shown(job.revision)],
    ['worker', shown(job.holder)],
    ['created', at(job.createdAt)],
    ['runs', job.state === 'scheduled' ? at(job.runAt) : ''],
    ['claimed', at(job.claimedAt)],
    ['finished', at(job.finishedAt)],
    ['ran', job.ranMs === null ? '' : `${job.ranMs} ms`],
    ['payload', json(job.payload)],
    ['headers', json(job.headers)],
    ['progress', json(job.progress)],
    ['result', json(job.result)],
    ['last error', oneLine(firstLine(job.lastError)), 'red'],
  ]
  terminal.pairs(pairs.filter(([, value]) => value !== ''))
  if (attempts.length === 0) return
  terminal.line('')
  terminal.table<AttemptRow>(
    [
      { title: 'attempt', value: ({ attempt }) => shown(attempt), isRight: true },
      { title: 'outcome', value: ({ outcome }) => outcome, paint: ({ outcome }) => (outcome === 'done' ? 'green' : 'yellow') },
      { title: 'ended', value: ({ endedAt }) => relativeTime(endedAt) },
      { title: 'ms', value: ({ ranMs }) => shown(ranMs), isRight: true },
      { title: 'worker', value: ({ holder }) => shown(holder), isRight: true },
      { title: 'error', value: ({ error }) => firstLine(error) },
    ],
    attempts,
  )
}

const add = command({
  name: 'add',
  summary: 'Add a job and print its id.',
  examples: [
    'pawl jobs add email \'{"to": "a@b.c"}\'',
    'pawl jobs add report @payload.json --delay 15m',
    "echo '{}' | pawl jobs add cleanup -",
  ],
  args: [
    ['<kind>', 'the kind, as a worker defines it'],
    ['[payload]', 'JSON, @file, or - for stdin', '{}'],
  ],
  flags: {
    queue: withDefault(text('--queue <queue>', "the queue that the kind's workers take jobs from"), 'default'),
    delay: text('--delay <duration>', 'run it after 250ms, 5s, 15m, 2h or 7d'),
    at: time('--at <time>', 'run it at this time, such as 2030-01-31T08:00:00Z'),
    priority: integer('--priority <points>', [-100, 100], 'from -100 to 100; each point counts as a minute of waiting'),
    maxAttempts: integer('--max-attempts <count>', [1, 1_000_000], 'number of failures after which the job is dead'),
  },
  run: async (context, kind: string, payloadText: string) => {
    const { queue, delay, at, priority, maxAttempts } = context.flags
    const payload = await readPayload(payloadText, context.terminal)
    const { id, reasons } = await withPawl(context, async ({ jobs }) => {
      const added = await jobs.enqueue(kind, payload, given({ queue, delay, runAt: at, priority, maxAttempts }))
      return await jobs.why(added.id)
    })
    // A job that no worker will take is the most common surprise, so it is said at once.
    const notes = reasons.filter(({ code }) => code === 'queue-not-worked' || code === 'kind-unknown')
    return { json: { id }, show: (terminal) => terminal.line(id), say: notes.map(({ text }) => `note  ${text}`) }
  },
})

const changedColumns: readonly Column<{ id: string; state: string; was?: string }>[] = [
  { title: 'id', value: ({ id }) => id },
  { title: 'state', value: ({ state }) => state, paint: ({ state }) => stateColours[state] },
  { title: 'was', value: ({ was }) => was ?? '' },
]

function changeOptions({
  revision,
  reason,
  by,
}: {
  revision: number | undefined
  reason: string | undefined
  by: string | undefined
}) {
  return given({ revision, reason: reason || undefined, by: by || undefined })
}

const retry = command({
  name: 'retry',
  summary: 'Make dead or scheduled jobs ready now. A dead job gets all its attempts back.',
  examples: [
    'pawl jobs retry 3752613581234176001',
    "pawl jobs retry 3752613581234176001 --by maria --reason 'the relay is back'",
  ],
  args: [['<id...>', 'job ids']],
  flags: {
    reason: text('--reason <text>', 'the reason, stored in the audit with --by'),
    by: byFlag,
    revision: revisionFlag('job'),
  },
  run: (context, ids: string[]) =>
    changeEach(context, ids, {
      columns: changedColumns,
      change: async ({ jobs }, id) => {
        const { revision } = await jobs.retry(id, changeOptions(context.flags))
        return { id, state: 'ready', revision }
      },
    }),
})

const cancel = command({
  name: 'cancel',
  summary: 'Cancel jobs. A waiting job never starts; a running job is signalled, and its result is refused.',
  examples: ["pawl jobs cancel 3752613581234176001 --reason 'sent twice'"],
  args: [['<id...>', 'job ids']],
  flags: {
    reason: text('--reason <text>', 'the reason, stored with the job'),
    by: byFlag,
    revision: revisionFlag('job'),
    yes: toggle('-y, --yes', 'cancel running jobs without asking (it asks on a terminal only)'),
  },
  run: (context, ids: string[]) => {
    const { terminal, flags } = context
    return changeEach(context, ids, {
      columns: changedColumns,
      change: async ({ jobs }, id) => {
        if (!flags.yes && terminal.canAsk) {
          const job = await jobs.get(id)
          const question = `Job ${id} (${oneLine(job?.kind ?? '')}) is running on worker ${job?.holder}. Cancel it?`
          if (job?.state === 'running' && !(await terminal.confirms(question))) return { id, state: 'kept' }
        }
        const { was } = await jobs.cancel(id, changeOptions(flags))
        return { id, state: 'cancelled', was }
      },
    })
  },
})

const why = command({
  name: 'why',
  summary: 'Explain why a job is not running, or how it ended.',
  examples: ['pawl jobs why 3752613581234176001'],
  args: [['<id>', 'the job id']],
  run: async (context, id: string) => {
    const answer = await withPawl(context, ({ jobs }) => jobs.why(id))
    const reasons = answer.reasons.map(({ text }) => ['why', oneLine(text)] as const)
    return {
      json: answer,
      show: (terminal) => terminal.pairs([['state', answer.state, stateColours[answer.state]], ...reasons]),
    }
  },
})

export const jobs: Noun = {
  name: 'jobs',
  summary: 'List, inspect and change jobs.',
  examples: ['pawl jobs list', 'pawl jobs add email \'{"to": "a@b.c"}\''],
  verbs: [list, get, add, retry, cancel, why],
  next: {
    PAWL_COMMIT_UNKNOWN: 'pawl jobs list: check whether it was stored before you try again',
    PAWL_NOT_FOUND: "pawl jobs list, or 'pawl jobs list --state done' for finished jobs; add --tenant if the job belongs to one",
    PAWL_REVISION_CONFLICT: 'pawl jobs get <id>, then retry with the new revision',
    PAWL_WRONG_STATE: 'pawl jobs why <id>',
  },
}

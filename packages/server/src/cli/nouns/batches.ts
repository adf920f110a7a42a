// `pawl batches ...`: list, inspect and change batches.

import type { BatchState } from 'pawl'
import { byFlag, pageAnswer, pageFlags } from '../answers.ts'
import { command, given, type Noun, oneOf, required, text, toggle } from '../command.ts'
import { withPawl } from '../database.ts'
import { exitCodes } from '../failure.ts'
import { watched } from '../progress.ts'
import { oneLine } from '../terminal.ts'
import { batchAnswer, changedAnswer, itemColumns, listColumns, progressOf, stateColours, stuckColumns } from './batch-views.ts'

const states = Object.keys(stateColours) as BatchState[]
const idArg = [['<id>', 'the batch id']] as const
const actFlags = { reason: required(text('--reason <text>', 'the reason, stored in the audit')), by: required(byFlag) }

const list = command({
  name: 'list',
  summary: 'List batches, newest first.',
  examples: ['pawl batches list', 'pawl batches list --state running', 'pawl batches list --name reparse -o json'],
  flags: {
    name: text('--name <name>', 'only batches of this name'),
    track: text('--track <track>', 'only batches of this track'),
    state: oneOf('--state <state>', states, 'only this state'),
    ...pageFlags,
  },
  run: async (context) => {
    const { limit, name, track, state, after } = context.flags
    const page = await withPawl(context, ({ batches: all }) => all.list({ limit, ...given({ name, track, state, after }) }))
    return pageAnswer(page, listColumns, 'No such batches.')
  },
})

const get = command({
  name: 'get',
  summary: 'Show one batch with its counts and sums, or watch it until it has ended.',
  examples: ['pawl batches get 3752613581234176001', 'pawl batches get 3752613581234176001 --watch'],
  args: idArg,
  flags: { watch: toggle('-w, --watch', 'wait for its end; exit 7 if it timed out, 1 if it is no success otherwise') },
  run: (context, id: string) =>
    withPawl(context, async ({ batches: all }) => {
      if (!context.flags.watch) return batchAnswer(await all.get(id))
      const batch = await watched(context.terminal, () => all.get(id), progressOf)
      const exit = batch.state === 'timed-out' ? exitCodes.timedOut : batch.isSuccess ? exitCodes.ok : exitCodes.failed
      return { ...batchAnswer(batch), exit }
    }),
})

const outcomes = ['done', 'failed', 'waiting', 'late'] as const
const items = command({
  name: 'items',
  summary: 'List the items of a batch in their order.',
  examples: ['pawl batches items 3752613581234176001', 'pawl batches items 3752613581234176001 --outcome failed'],
  args: idArg,
  flags: { outcome: oneOf('--outcome <outcome>', outcomes, 'only these; late: refused after the end'), ...pageFlags },
  run: async (context, id: string) => {
    const { limit, outcome, after } = context.flags
    const page = await withPawl(context, ({ batches: all }) => all.items(id, { limit, ...given({ outcome, after }) }))
    return pageAnswer(page, itemColumns, 'No such items.')
  },
})

const why = command({
  name: 'why',
  summary: 'Explain why a batch waits or has not ended yet, or how it ended.',
  examples: ['pawl batches why 3752613581234176001'],
  args: idArg,
  run: async (context, id: string) => {
    const answer = await withPawl(context, ({ batches: all }) => all.why(id))
    const reasons = answer.reasons.map(({ text: said }) => ['why', oneLine(said)] as const)
    return {
      json: answer,
      show: (terminal) => terminal.pairs([['state', answer.state, stateColours[answer.state]], ...reasons]),
    }
  },
})

const cancel = command({
  name: 'cancel',
  summary: 'End a batch that runs or waits. The results of its items in progress are refused.',
  examples: ["pawl batches cancel 3752613581234176001 --by maria --reason 'the wrong files'"],
  args: idArg,
  flags: actFlags,
  run: async (context, id: string) => {
    const { reason, by } = context.flags
    const { state } = await withPawl(context, ({ batches: all }) => all.cancel(id, { reason, by }))
    return changedAnswer({ id, state })
  },
})

const extend = command({
  name: 'extend',
  summary: 'Move the deadline of a running batch.',
  examples: ["pawl batches extend 3752613581234176001 --for 15m --by maria --reason 'a slow disk'"],
  args: idArg,
  flags: {
    for: required(text('--for <duration>', 'how much later: 90s, 15m, 2h or 1d; from now if it has passed')),
    ...actFlags,
  },
  run: async (context, id: string) => {
    const { for: later, reason, by } = context.flags
    const { deadline } = await withPawl(context, ({ batches: all }) => all.extend(id, { for: later, reason, by }))
    return changedAnswer({ id, state: 'running', deadline })
  },
})

const rerun = command({
  name: 'rerun',
  summary: 'Start a new batch of the items of an ended one that failed or did not end. A worker that defines the batch runs it.',
  examples: ['pawl batches rerun 3752613581234176001', 'pawl batches rerun 3752613581234176001 --only failed --by maria'],
  args: idArg,
  flags: {
    only: oneOf('--only <items>', ['failed', 'unfinished', 'both'] as const, 'which items; both by default'),
    policy: oneOf(
      '--policy <policy>',
      ['refuse', 'queue', 'replace'] as const,
      'while another batch runs; by default that of the batch',
    ),
    by: text('--by <name>', 'the acting person, stored with the new batch'),
  },
  run: async (context, id: string) => {
    const { only, policy, by } = context.flags
    const [started, { reasons }] = await withPawl(context, async ({ batches: all }) => {
      const again = await all.rerun(id, given({ only, policy, by }))
      return [again, await all.why(again.id)] as const
    })
    const notes = reasons.filter(({ code }) => /track-busy|not-worked|kind-unknown/.test(code))
    return { ...changedAnswer(started), say: notes.map(({ text: said }) => `note  ${oneLine(said)}`) }
  },
})

const stuck = command({
  name: 'stuck',
  summary:
    'List keys whose latest item has no end: its batch has ended or is overdue, or its job is dead. Failed items have ended: items <id> --outcome failed.',
  examples: ['pawl batches stuck', 'pawl batches stuck --name reparse --older-than 1h'],
  flags: {
    name: text('--name <name>', 'only items of batches of this name'),
    olderThan: text('--older-than <duration>', 'only where the end or the deadline is this long ago'),
    ...pageFlags,
  },
  run: async (context) => {
    const { limit, name, olderThan, after } = context.flags
    const page = await withPawl(context, ({ batches: all }) => all.stuck({ limit, ...given({ name, olderThan, after }) }))
    return pageAnswer(page, stuckColumns, 'Nothing is stuck.')
  },
})

export const batches: Noun = {
  name: 'batches',
  summary: 'List, inspect and change batches.',
  examples: ['pawl batches list --state running', 'pawl batches get 3752613581234176001 --watch'],
  verbs: [list, get, items, why, cancel, extend, rerun, stuck],
  next: {
    PAWL_COMMIT_UNKNOWN: 'pawl batches list: check whether it was stored before you try again',
    PAWL_NOT_FOUND: 'pawl batches list; add --tenant if the batch belongs to one',
    PAWL_TRACK_BUSY: 'pawl batches list --state running; then wait for it, or cancel it',
    PAWL_WRONG_STATE: 'pawl batches why <id>',
  },
}

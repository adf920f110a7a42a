// `pawl records ...`: act on submissions.

import { byFlag } from '../answers.ts'
import { command, given, type Noun, required, text } from '../command.ts'
import { withPawl } from '../database.ts'
import type { Column } from '../terminal.ts'

const cancelledColumns: readonly Column<{ id: string; set: string; state: string }>[] = [
  { title: 'id', value: ({ id }) => id },
  { title: 'set', value: ({ set }) => set },
  { title: 'state', value: ({ state }) => state },
]

const cancel = command({
  name: 'cancel',
  summary: 'End a submission as failed. What it wrote is purged, its scope is free, and the application can resume it.',
  examples: ["pawl records cancel 17 --reason 'the wrong file' --by maria"],
  args: [['<id>', 'the submission id']],
  flags: { reason: required(text('--reason <text>', 'the reason, stored in the audit')), by: byFlag },
  run: async (context, id: string) => {
    const { reason, by } = context.flags
    const { state, set } = await withPawl(context, ({ records }) => records.cancel(id, { reason, ...given({ by }) }))
    return { json: { id, set, state }, show: (terminal) => terminal.table(cancelledColumns, [{ id, set, state }]) }
  },
})

export const records: Noun = {
  name: 'records',
  summary: 'Act on submissions of record sets.',
  examples: ["pawl records cancel 17 --reason 'the wrong file'"],
  verbs: [cancel],
}

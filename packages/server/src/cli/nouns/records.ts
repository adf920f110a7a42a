// `pawl records ...`: act on submissions.

import { withPawl } from '../database.ts'
import type { CommandAdder, Context } from '../program.ts'

interface CancelFlags {
  readonly reason: string
  readonly by?: string
}

export function addRecords(adder: CommandAdder): void {
  const records = adder.add(undefined, 'records', {
    summary: 'Act on submissions of record sets.',
    examples: ["pawl records cancel 17 --reason 'the wrong file'"],
  })
  const command = adder.add(records, 'cancel', {
    summary: 'End a submission as failed. What it wrote is purged, its scope is free, and the application can resume it.',
    examples: ["pawl records cancel 17 --reason 'the wrong file' --by maria"],
  })
  command
    .argument('<id>', 'the submission id')
    .requiredOption('--reason <text>', 'the reason, stored in the audit')
    .option('--by <name>', 'the acting person, stored in the audit')
  adder.does<CancelFlags>(command, cancel)
}

async function cancel({ database, tenant, terminal, flags }: Context<CancelFlags>, id: string): Promise<void> {
  const { reason, by } = flags
  const options = { reason, ...(by === undefined ? {} : { by }) }
  const { state, set } = await withPawl({ database, tenant }, ({ records }) => records.cancel(id, options))
  if (terminal.output !== 'table') return terminal.json({ id, set, state })
  terminal.table(
    [
      { title: 'id', value: (each) => each.id },
      { title: 'set', value: (each) => each.set },
      { title: 'state', value: (each) => each.state },
    ],
    [{ id, set, state }],
  )
}

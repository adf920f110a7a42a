import { release } from 'pawl/admin'
import type { CommandAdder } from './program.ts'

export function addVersion(adder: CommandAdder): void {
  const command = adder.add(undefined, 'version', {
    summary: 'Print the versions of Pawl and of what it runs on.',
    examples: ['pawl version', 'pawl version -o json'],
  })
  adder.does(command, async ({ terminal }) => {
    const versions = { pawl: release, node: process.versions.node, platform: `${process.platform}-${process.arch}` }
    if (terminal.output !== 'table') terminal.json(versions)
    else terminal.pairs(Object.entries(versions))
  })
}

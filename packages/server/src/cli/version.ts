import { release } from 'pawl/admin'
import { command } from './command.ts'

export const version = command({
  name: 'version',
  summary: 'Print the versions of Pawl and of what it runs on.',
  examples: ['pawl version', 'pawl version -o json'],
  run: async () => {
    const versions = { pawl: release, node: process.versions.node, platform: `${process.platform}-${process.arch}` }
    return { json: versions, show: (terminal) => terminal.pairs(Object.entries(versions)) }
  },
})

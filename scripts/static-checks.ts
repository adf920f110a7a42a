// Checks of the sources that do not run them: types and lint.

import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import type { Program } from './phase.ts'

const require = createRequire(import.meta.url)

/** The script of a package's command, run by our own Node: no shell and no npx in between. */
export function bin(packageName: string, command = packageName): string {
  const manifest = require.resolve(`${packageName}/package.json`)
  const { bin: bins } = require(manifest) as { bin: string | Record<string, string> }
  const file = typeof bins === 'string' ? bins : bins[command]
  if (file === undefined) throw new Error(`${packageName} has no command ${command}`)
  return join(dirname(manifest), file)
}

export const staticChecks: readonly Program[] = [
  { name: 'types (tsc)', args: [bin('typescript', 'tsc'), '-p', '.', '--pretty', 'false'] },
  { name: 'lint (biome)', args: [bin('@biomejs/biome', 'biome'), 'check', '--colors=off', '--max-diagnostics=50'] },
  { name: 'lint (oxlint)', args: [bin('oxlint'), '--type-aware', '--deny-warnings'] },
]

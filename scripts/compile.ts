// Compiles a package to JavaScript as npm would publish it: dist beside its package.json, the SQL files beside the modules that read them.

import { copyFileSync, cpSync, mkdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { type Ended, root, runNode } from './phase.ts'
import { filesUnder } from './results.ts'
import { bin } from './static-checks.ts'

export type PackageName = 'pawl' | 'server'

/** Into the package itself, or into another folder that then looks like the installed package. */
export async function compile(name: PackageName, target?: string): Promise<Ended> {
  const source = join(root, 'packages', name)
  const dist = join(target ?? source, 'dist')
  const args = [bin('typescript', 'tsc'), '-p', join('scripts', `tsconfig.${name}.json`), '--pretty', 'false', '--outDir', dist]
  // Elsewhere it is for a test, and the types are checked by others.
  const ended = await runNode({
    name: `compile ${name}`,
    args: target === undefined ? args : [...args, '--noCheck', '--declaration', 'false'],
  })
  if (!ended.ok) return ended
  for (const file of filesUnder(join(source, 'src')))
    if (file.endsWith('.sql')) copy(file, join(dist, relative(join(source, 'src'), file)))
  if (target !== undefined) {
    const { files = [] } = JSON.parse(readFileSync(join(source, 'package.json'), 'utf8')) as { files?: string[] }
    for (const file of ['package.json', ...files.filter((path) => path !== 'dist')])
      cpSync(join(source, file), join(target, file), { recursive: true })
  }
  return ended
}

function copy(file: string, to: string): void {
  mkdirSync(dirname(to), { recursive: true })
  copyFileSync(file, to)
}

// What the processes under test run: Pawl as npm publishes it, and the host with its peers compiled beside it, without tsx, as an application is.
// The peers' packages are found through a link above the builds.

import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, rmSync, symlinkSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'
import { compile } from '../../../scripts/compile.ts'
import { inlined } from '../../../scripts/inline.ts'
import { git } from '../report/commit.ts'

const bench = dirname(dirname(dirname(fileURLToPath(import.meta.url))))
const root = dirname(bench)
const builds = join(root, '.pawl', 'bench', 'builds')

/** The working tree as it was when the run started. */
export const ownBuild = join(builds, 'own')

export async function buildOwn(): Promise<void> {
  await compile('pawl', packageIn(ownBuild))
  await compileHost(ownBuild)
}

/** Pawl of another commit, with this tree's host and peers. Returns the folder. */
export async function buildOf(commit: string): Promise<string> {
  const folder = join(builds, git('rev-parse', '--short=10', `${commit}^{commit}`))
  const tree = join(folder, 'tree')
  if (!existsSync(join(packageIn(folder), 'dist'))) {
    rmSync(folder, { recursive: true, force: true })
    mkdirSync(tree, { recursive: true })
    const archive = execFileSync('git', ['archive', commit], { cwd: root, maxBuffer: 2 ** 30 })
    execFileSync('tar', ['-x', '-C', tree], { input: archive })
    symlinkSync(join(root, 'node_modules'), join(tree, 'node_modules'))
    const code = `import { compile } from './scripts/compile.ts'; await compile('pawl', ${JSON.stringify(packageIn(folder))})`
    execFileSync(process.execPath, ['--import', 'tsx', '--input-type=module', '--eval', code], { cwd: tree })
  }
  await compileHost(folder)
  return folder
}

export function hostIn(folder: string): string {
  return join(folder, 'host.js')
}

function packageIn(folder: string): string {
  return join(folder, 'node_modules', 'pawl')
}

/** `import('../../peers/<name>.ts')` becomes one file for each peer. What a peer takes from Pawl's sources is compiled into it. */
async function compileHost(folder: string): Promise<void> {
  const link = join(builds, 'node_modules')
  if (!existsSync(link)) symlinkSync(join(bench, 'node_modules'), link)
  await build({
    entryPoints: [join(bench, 'harness', 'system', 'host.ts')],
    outdir: folder,
    bundle: true,
    splitting: true,
    packages: 'external',
    format: 'esm',
    platform: 'node',
    target: 'node20',
    logLevel: 'error',
    plugins: [inlined('export const newThread = undefined')],
  })
}

// What `npm run test:full` adds: of every torture scenario many seeds, its stories, its whole crash matrix and every canary; and the tests
// on a newer Node.

import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import type { Scenario } from '../torture/scenario.ts'
import { line, report, root, runNode, summary } from './phase.ts'
import { runVitest } from './run-vitest.ts'

const seeds = 20
const secondsEach = 30
/** A storm takes its seconds and then as long as its work needs to come to rest; the cases of a probe that is hard to reach take longest. */
const tortureMs = 10 * 60_000
const newerNode = '24'

interface Counts {
  passed: number
  failed: number
  skipped: number
}

export async function runFull(): Promise<Counts> {
  const total: Counts = { passed: 0, failed: 0, skipped: 0 }
  const { scenarios } = await import('../torture/scenarios.ts')
  const tortures = scenarios.flatMap((scenario) =>
    [runSeeds, runStories, runMatrix, runCanaries].map((step) => () => step(scenario)),
  )
  for (const step of [...tortures, runNewerNode]) {
    const { passed, failed, skipped } = await step()
    total.passed += passed
    total.failed += failed
    total.skipped += skipped
  }
  return total
}

interface TortureReport {
  readonly operations: number
  readonly vacuous: boolean
  readonly checks: Readonly<Record<string, number>>
  readonly violations: readonly unknown[]
}

type Ended = Awaited<ReturnType<typeof runNode>>

async function torture(name: string, args: readonly string[]): Promise<{ ended: Ended; found: TortureReport | undefined }> {
  const ended = await runNode({
    name,
    args: ['--import', 'tsx', '--conditions=source', join('torture', 'main.ts'), ...args, '--json'],
    timeoutMs: tortureMs,
  })
  try {
    return { ended, found: JSON.parse(ended.stdout.trim().split('\n').at(-1) ?? '') as TortureReport }
  } catch {
    return { ended, found: undefined }
  }
}

/** Clean, and worth something: a run in which a planned fault did not happen proves nothing. */
async function expectClean(name: string, args: readonly string[], counts: Counts): Promise<void> {
  const { ended, found } = await torture(name, args)
  const ok = ended.ok && found !== undefined && !found.vacuous && found.violations.length === 0
  const cases = found?.checks.cases === undefined ? '' : `${found.checks.cases} cases, `
  report(
    { ...ended, ok },
    found === undefined
      ? 'no report'
      : `${cases}${found.operations} operations, ${found.violations.length} violations${found.vacuous ? ', vacuous' : ''}`,
  )
  counts[ok ? 'passed' : 'failed']++
}

async function runSeeds({ name }: Scenario): Promise<Counts> {
  const counts: Counts = { passed: 0, failed: 0, skipped: 0 }
  for (let seed = 1; seed <= seeds; seed++) {
    await expectClean(`${name}, seed ${seed}`, [name, '--seed', String(seed), '--seconds', String(secondsEach)], counts)
  }
  return counts
}

/** The stories of the canaries, without their bugs. */
async function runStories({ stories }: Scenario): Promise<Counts> {
  const counts: Counts = { passed: 0, failed: 0, skipped: 0 }
  for (const story of stories) await expectClean(`story ${story.name}`, ['directed', story.name], counts)
  return counts
}

/** Probe by probe, so that each has a line of its own. */
async function runMatrix({ name, matrix }: Scenario): Promise<Counts> {
  const counts: Counts = { passed: 0, failed: 0, skipped: 0 }
  for (const probe of new Set(matrix.cases.map((each) => each.probe))) {
    await expectClean(probe, [name, 'matrix', probe], counts)
  }
  return counts
}

/** A canary is a bug planted on purpose: the run must find it. */
async function runCanaries({ canaries }: Scenario): Promise<Counts> {
  const counts: Counts = { passed: 0, failed: 0, skipped: 0 }
  for (const { name } of canaries) {
    const { ended, found } = await torture(`canary ${name}`, ['--canary', name])
    const ok = ended.exit === 1 && !ended.isTimedOut && found !== undefined && found.violations.length > 0
    report({ ...ended, ok }, ok ? `caught: ${found.violations.length} violations` : 'it was not caught')
    counts[ok ? 'passed' : 'failed']++
  }
  return counts
}

async function runNewerNode(): Promise<Counts> {
  const name = `tests on Node ${newerNode}`
  const node = installNode()
  if (node === undefined) {
    line('skipped', name, undefined, 'npm has no such Node for this platform, or it could not be fetched')
    return { passed: 0, failed: 0, skipped: 1 }
  }
  const { ended, counts } = await runVitest({ name, node, file: join(root, '.pawl', 'test', `node-${newerNode}.jsonl`) })
  report({ ...ended, ok: counts.failed === 0 }, summary(counts))
  return counts
}

/** The package `node` would fetch its binary in an install script, and those are not run here; node-<platform> has it inside. */
function installNode(): string | undefined {
  const folder = join(root, '.pawl', `node-${newerNode}`)
  const binary = join(
    folder,
    'node_modules',
    `node-${process.platform}-${process.arch}`,
    'bin',
    process.platform === 'win32' ? 'node.exe' : 'node',
  )
  if (existsSync(binary)) return binary
  mkdirSync(folder, { recursive: true })
  const npm = process.env.npm_execpath
  const args = [
    'install',
    '--prefix',
    folder,
    '--no-save',
    '--ignore-scripts',
    '--no-audit',
    '--no-fund',
    `node-${process.platform}-${process.arch}@${newerNode}`,
  ]
  const done = npm
    ? spawnSync(process.execPath, [npm, ...args], { cwd: folder, stdio: 'ignore' })
    : spawnSync('npm', args, { cwd: folder, stdio: 'ignore', shell: process.platform === 'win32' })
  return done.status === 0 && existsSync(binary) ? binary : undefined
}

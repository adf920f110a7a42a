// What `npm run test:full` adds: torture over many seeds, every canary, and the tests on a newer Node.

import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { line, report, root, runNode, summary } from './phase.ts'
import { runVitest } from './run-vitest.ts'

const seeds = 20
const secondsEach = 30
/** A storm takes its seconds and then as long as its work needs to come to rest. */
const tortureMs = 5 * 60_000
const newerNode = '24'

interface Counts {
  passed: number
  failed: number
  skipped: number
}

export async function runFull(): Promise<Counts> {
  const total: Counts = { passed: 0, failed: 0, skipped: 0 }
  for (const step of [runSeeds, runCanaries, runNewerNode]) {
    const { passed, failed, skipped } = await step()
    total.passed += passed
    total.failed += failed
    total.skipped += skipped
  }
  return total
}

const tortureArgs = ['--import', 'tsx', '--conditions=source', join('torture', 'main.ts')]

interface TortureReport {
  readonly operations: number
  readonly vacuous: boolean
  readonly violations: readonly unknown[]
}

async function torture(
  name: string,
  more: readonly string[],
): Promise<{ ended: Awaited<ReturnType<typeof runNode>>; report: TortureReport | undefined }> {
  const ended = await runNode({ name, args: [...tortureArgs, 'jobs', '--json', ...more], timeoutMs: tortureMs })
  try {
    return { ended, report: JSON.parse(ended.stdout.trim().split('\n').at(-1) ?? '') as TortureReport }
  } catch {
    return { ended, report: undefined }
  }
}

async function runSeeds(): Promise<Counts> {
  const counts: Counts = { passed: 0, failed: 0, skipped: 0 }
  for (let seed = 1; seed <= seeds; seed++) {
    const { ended, report: found } = await torture(`torture, seed ${seed}`, [
      '--seed',
      String(seed),
      '--seconds',
      String(secondsEach),
    ])
    // A run in which no fault fired proves nothing.
    const ok = ended.ok && found !== undefined && !found.vacuous && found.violations.length === 0
    report(
      { ...ended, ok },
      found === undefined
        ? 'no report'
        : `${found.operations} operations, ${found.violations.length} violations${found.vacuous ? ', vacuous' : ''}`,
    )
    counts[ok ? 'passed' : 'failed']++
  }
  return counts
}

/** A canary is a bug planted on purpose: the run must find it. */
async function runCanaries(): Promise<Counts> {
  const counts: Counts = { passed: 0, failed: 0, skipped: 0 }
  const listed = await runNode({ name: 'canaries', args: [...tortureArgs, '--list-canaries'] })
  const names = listed.stdout.split('\n').filter((name) => name.trim() !== '')
  if (!listed.ok || names.length === 0) {
    report({ ...listed, ok: false }, 'no canaries are listed')
    return { ...counts, failed: 1 }
  }
  for (const name of names) {
    const { ended, report: found } = await torture(`canary ${name}`, ['--canary', name])
    const ok = ended.exit !== 0 && !ended.isTimedOut && found !== undefined && found.violations.length > 0
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

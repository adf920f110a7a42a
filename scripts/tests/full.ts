// What `npm run test:full` runs: both tiers of tests; of every torture scenario many seeds, its stories, its whole crash matrix and every
// canary; and the tests on a newer Node. `--only jobs` takes the steps of one folder, `--part 2/3` one of three parts of like length.

import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import type { Scenario } from '../../torture/scenario.ts'
import { canariesOf, scenarios } from '../../torture/scenarios.ts'
import { line, report, root, runNode, summary } from '../phase.ts'
import type { Counts } from '../results.ts'
import { runVitest, type VitestRun } from './run-vitest.ts'

const seeds = 20
const secondsEach = 20
/** A storm takes its seconds and then as long as its work needs to come to rest; the cases of a probe that is hard to reach take longest. */
const tortureMs = 10 * 60_000
const slowMs = 90 * 60_000
const newerNode = '24'

export interface Step {
  readonly name: string
  /** What it is about: a folder of the library, a torture scenario, or everything. */
  readonly about: string
  /** As measured on two cores; it decides which part a step goes to. */
  readonly minutes: number
  readonly run: () => Promise<Counts>
}

type Vitest = (run: VitestRun) => Promise<Counts>

/** Folders that share a scenario. */
const scenarioOf: Readonly<Record<string, string>> = { events: 'log', projections: 'log' }

/** The steps that the arguments ask for. */
export function fullSteps(args: readonly string[], vitest: Vitest): Step[] {
  const only = optionOf(args, '--only')
  const part = optionOf(args, '--part')
  const steps = allSteps(vitest, only).filter(({ about }) => only === undefined || about === only || about === scenarioOf[only])
  if (steps.length === 0) throw new Error(`--only must name a folder or a torture scenario, got '${only}'.`)
  return part === undefined ? steps : partOf(steps, part)
}

function optionOf(args: readonly string[], name: string): string | undefined {
  const index = args.indexOf(name)
  return index < 0 ? undefined : args[index + 1]
}

/** The longest step goes to the part with the least to do, until none is left. */
export function partOf(steps: readonly Step[], part: string): Step[] {
  const [number = 0, count = 0] = part.split('/').map(Number)
  if (!(number >= 1 && number <= count && count <= 20 && Number.isInteger(number + count)))
    throw new Error(`--part must be like 2/3, got '${part}'.`)
  const parts = Array.from({ length: count }, () => ({ minutes: 0, steps: [] as Step[] }))
  for (const each of [...steps].sort((a, b) => b.minutes - a.minutes)) {
    const least = parts.reduce((best, other) => (other.minutes < best.minutes ? other : best))
    least.steps.push(each)
    least.minutes += each.minutes
  }
  return parts[number - 1]!.steps
}

function allSteps(vitest: Vitest, only: string | undefined): Step[] {
  const about = only ?? 'all'
  const files = only === undefined ? [] : [`/${only}`]
  const excluded = ['--exclude', '**/*.slow.test.ts']
  return [
    {
      name: 'tests',
      about,
      minutes: 5,
      run: () => vitest({ name: 'tests', args: [...files, ...excluded], env: { PAWL_FULL: '1' } }),
    },
    {
      name: 'slow tests',
      about,
      minutes: 18,
      run: () => vitest({ name: 'slow tests', args: slowArgs(only), env: { PAWL_FULL: '1' }, timeoutMs: slowMs }),
    },
    ...scenarios.flatMap((scenario) => [
      { name: 'seeds', about: scenario.name, minutes: 14, run: () => runSeeds(scenario) },
      { name: 'stories', about: scenario.name, minutes: 3, run: () => runStories(scenario) },
      { name: 'matrix', about: scenario.name, minutes: 9, run: () => runMatrix(scenario) },
      { name: 'canaries', about: scenario.name, minutes: 7, run: () => runCanaries(scenario) },
    ]),
    { name: `Node ${newerNode}`, about: 'all', minutes: 6, run: runNewerNode },
  ]
}

/** Files of the tier whose path has the folder in it, or whose name begins with it. */
function slowArgs(only: string | undefined): string[] {
  return [only === undefined ? '.slow.test.ts' : `/${only}`, '--maxWorkers=1', '--exclude', '**/!(*.slow).test.ts']
}

interface Tally {
  passed: number
  failed: number
  skipped: number
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
    args: ['--import', 'tsx', '--conditions=@pawl/source', join('torture', 'main.ts'), ...args, '--json'],
    timeoutMs: tortureMs,
  })
  try {
    return { ended, found: JSON.parse(ended.stdout.trim().split('\n').at(-1) ?? '') as TortureReport }
  } catch {
    return { ended, found: undefined }
  }
}

/** Clean, and worth something: a run in which a planned fault did not happen proves nothing. */
async function expectClean(name: string, args: readonly string[], counts: Tally): Promise<void> {
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
  const counts: Tally = { passed: 0, failed: 0, skipped: 0 }
  for (let seed = 1; seed <= seeds; seed++) {
    await expectClean(`${name}, seed ${seed}`, [name, '--seed', String(seed), '--seconds', String(secondsEach)], counts)
  }
  return counts
}

/** The stories of the canaries, without their bugs. */
async function runStories({ stories }: Scenario): Promise<Counts> {
  const counts: Tally = { passed: 0, failed: 0, skipped: 0 }
  for (const name of Object.keys(stories)) await expectClean(`story ${name}`, ['directed', name], counts)
  return counts
}

/** Probe by probe, so that each has a line of its own. */
async function runMatrix({ name, matrix }: Scenario): Promise<Counts> {
  const counts: Tally = { passed: 0, failed: 0, skipped: 0 }
  for (const probe of new Set(matrix.cases.map((each) => each.probe))) {
    await expectClean(probe, [name, 'matrix', probe], counts)
  }
  return counts
}

/** A canary is a bug planted on purpose: the run must find it. */
async function runCanaries(scenario: Scenario): Promise<Counts> {
  const counts: Tally = { passed: 0, failed: 0, skipped: 0 }
  for (const { name } of canariesOf(scenario)) {
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
  const file = join(root, '.pawl', 'test', `node-${newerNode}.jsonl`)
  const { ended, counts } = await runVitest({ name, node, file, args: ['--exclude', '**/*.slow.test.ts'] })
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

// npm run torture -- jobs --seed N --seconds S [--json] [--plan FILE] [--canary NAME] | --list-canaries

import { mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { canaries, canaryNamed } from './canaries/canaries.ts'
import { runCanary, runScenario, scenarioNamed } from './directed/run.ts'
import { scenarios } from './directed/scenarios.ts'
import { cases } from './matrix/cases.ts'
import { runMatrix } from './matrix/run.ts'
import { makePlan, readPlan } from './plan.ts'
import { stream } from './random.ts'
import { type Report, summaryLines } from './report.ts'
import { openRigs } from './rig.ts'
import { runStorm } from './storm.ts'

const usage = `npm run torture -- jobs [--seed N] [--seconds S] [--json] [--plan FILE] [--keep]
npm run torture -- jobs --canary NAME [--seed N] [--seconds S] [--json]
npm run torture -- matrix [PROBE] [--only KIND] [--sample N --seed N] [--json]
npm run torture -- directed [SCENARIO] [--json]
npm run torture -- --list-canaries`

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    seed: { type: 'string', default: '1' },
    seconds: { type: 'string', default: '30' },
    json: { type: 'boolean', default: false },
    plan: { type: 'string' },
    canary: { type: 'string' },
    'list-canaries': { type: 'boolean', default: false },
    only: { type: 'string' },
    sample: { type: 'string' },
    keep: { type: 'boolean', default: false },
  },
})

const say = (line: string): void => console.error(line)

async function main(): Promise<number> {
  if (values['list-canaries']) {
    for (const { name } of canaries) console.log(name)
    return 0
  }
  if (positionals[0] === 'jobs') return values.canary === undefined ? storm() : canary(values.canary)
  if (positionals[0] === 'matrix') return matrix(positionals[1])
  if (positionals[0] === 'directed') return directed(positionals[1])
  console.error(usage)
  return 2
}

async function storm(): Promise<number> {
  const plan = values.plan === undefined ? makePlan(Number(values.seed), Number(values.seconds)) : readPlan(values.plan)
  const path = savePlan(plan)
  say(`seed ${plan.seed}, ${plan.seconds} s, lease ${plan.leaseMs} ms, beat ${plan.beatMs} ms, plan ${path}`)
  const { report, more, dir } = await runStorm(plan, { say, keep: values.keep })
  print(report, more)
  if (dir !== undefined) say(`histories: ${dir}`)
  return report.violations.length > 0 || report.vacuous ? 1 : 0
}

/** Every probe with everything that can go wrong there; or the cases of one probe, one kind of fault, or a few drawn by the seed. */
async function matrix(probe: string | undefined): Promise<number> {
  const asked = cases.filter(
    (each) => (probe === undefined || each.probe.startsWith(probe)) && (values.only === undefined || each.kind === values.only),
  )
  const chosen =
    values.sample === undefined ? asked : stream(Number(values.seed), 'matrix').shuffled(asked).slice(0, Number(values.sample))
  if (chosen.length === 0) throw new Error('No case of the matrix is called so.')
  const { report, more, dir } = await runMatrix({ cases: chosen, seed: Number(values.seed), say, keep: values.keep })
  print(report, more)
  if (dir !== undefined) say(`histories: ${dir}`)
  return report.violations.length > 0 || report.vacuous ? 1 : 0
}

/** The scenarios of the canaries without their bugs: each must be clean. */
async function directed(name: string | undefined): Promise<number> {
  let found = 0
  for (const scenario of name === undefined ? scenarios : [scenarioNamed(name)]) {
    const { report, more, dir } = await runScenario(scenario, { seed: Number(values.seed), seconds: 1, say, keep: values.keep })
    print(report, more)
    if (dir !== undefined) say(`histories: ${dir}`)
    found += report.violations.length
  }
  return found > 0 ? 1 : 0
}

/** Exit 1: the planted bug was found. Exit 0: it survived, which is the failure here. */
async function canary(name: string): Promise<number> {
  canaryNamed(name)
  const { report, more, dir } = await runCanary(name, {
    seed: Number(values.seed),
    seconds: Number(values.seconds),
    say,
    keep: values.keep,
  })
  print(report, more)
  if (dir !== undefined) say(`histories: ${dir}`)
  if (report.violations.length === 0) say(`The canary ${name} was not caught.`)
  return report.violations.length > 0 ? 1 : 0
}

function print(report: Report, more: Record<string, number | string>): void {
  if (values.json) console.log(JSON.stringify(report))
  else for (const line of summaryLines(report, more)) console.log(line)
}

function savePlan(plan: ReturnType<typeof makePlan>): string {
  const folder = join(dirname(dirname(fileURLToPath(import.meta.url))), '.pawl', 'torture')
  mkdirSync(folder, { recursive: true })
  const path = join(folder, `plan-${plan.seed}.json`)
  writeFileSync(path, `${JSON.stringify(plan, null, 2)}\n`)
  return path
}

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => abandon(`ended by ${signal}`))
process.on('uncaughtException', (error) => abandon(error.stack ?? String(error)))

/** The rig itself is broken or no longer wanted. That is neither a violation nor a pass. */
function abandon(why: string): never {
  for (const rig of openRigs) rig.abandon()
  console.error(why)
  process.exit(3)
}

process.exit(await main())

// npm run torture: the command. Exit codes: 0 clean, 1 a violation or a vacuous run, 2 a wrong call, 3 the rig itself broke.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type Call, readCall, WrongCall } from './arguments.ts'
import { minimise } from './minimise.ts'
import { makePlan, type Plan, readPlan, stream } from './plan.ts'
import { onlyBy, runCanary, runMatrix, runStorm, runStory } from './play.ts'
import { type RunReport, summaryLines } from './report.ts'
import { openRigs, root } from './rig.ts'
import type { Case, Scenario } from './scenario.ts'
import { canariesOf, canaryNamed, scenarioNamed, scenarios, storyNamed } from './scenarios.ts'

const say = (line: string): void => console.error(line)
const violationsShown = 50
/** A minimised plan is played so often to say how likely it fails. */
const finalTries = 10

/** Each returns the exit code. */
const verbs: Readonly<Record<Call['verb'], (call: Call) => Promise<number>>> = {
  async 'list canaries'(call) {
    for (const { name } of asked(call).flatMap(canariesOf)) console.log(name)
    return 0
  },

  async storm(call) {
    const plan = planOf(call)
    const path = savePlan(plan, `plan-${plan.torture}-${plan.seed}.json`)
    say(`seed ${plan.seed}, ${plan.seconds} s, lease ${plan.leaseMs} ms, beat ${plan.beatMs} ms, plan ${path}`)
    return print(call, await runStorm(scenarioNamed(plan.torture), plan, { say, keep: call.keep }))
  },

  /** Every probe with everything that can go wrong there; or the cases of one probe, one kind of fault, or a few drawn by the seed. */
  async matrix(call) {
    const { subject = '', only, hit, sample, seed, keep } = call
    let exit = 0
    for (const scenario of asked(call)) {
      const isWanted = (each: Case) => (only ?? each.kind) === each.kind && (hit ?? each.hit) === each.hit
      const wanted = scenario.matrix.cases.filter((each) => each.probe.startsWith(subject) && isWanted(each))
      const cases = sample === undefined ? wanted : stream(seed, 'matrix').shuffled(wanted).slice(0, sample)
      if (cases.length === 0) throw new WrongCall(`The matrix of ${scenario.name} has no such case.`)
      exit = Math.max(exit, print(call, await runMatrix(scenario, cases, { seed, say, keep })))
    }
    return exit
  },

  /** The stories of the canaries without their bugs: each must be clean. */
  async directed(call) {
    const { subject, seed, keep } = call
    const all = asked(call).flatMap((scenario) => Object.keys(scenario.stories).map((name) => ({ scenario, name })))
    let exit = 0
    for (const { scenario, name } of subject === undefined ? all : [storyNamed(subject)])
      exit = Math.max(exit, print(call, await runStory(scenario, name, { seed, seconds: 1, say, keep })))
    return exit
  },

  /** Exit 1: the planted bug was found. Exit 0: it survived, which is the failure here. With a plan it is played in that storm alone. */
  async canary(call) {
    const { scenario, canary } = canaryOf(call)
    const { seed, seconds, keep, plan } = call
    const inStorm = async (path: string) => onlyBy(canary, await runStorm(scenario, readPlan(path), { canary, say, keep }))
    const end = await (plan === undefined ? runCanary(scenario, canary, { seed, seconds, say, keep }) : inStorm(plan))
    print(call, end)
    const isFound = end.report.violations.length > 0
    if (!isFound) say(`The canary ${canary.name} was not caught.`)
    return isFound ? 1 : 0
  },

  async minimise(call) {
    const plan = planOf(call)
    const scenario = scenarioNamed(plan.torture)
    const planted = call.canary === undefined ? undefined : canaryOf(call).canary
    const play = async (candidate: Plan) => {
      const end = await runStorm(scenario, candidate, { canary: planted, say: () => undefined, keep: 'never' })
      const { violations } = (planted === undefined ? end : onlyBy(planted, end)).report
      return [...new Set(violations.map(({ check }) => check))]
    }
    const result = await minimise(plan, { play, tries: call.tries, finalTries, say })
    if (result === undefined) {
      say(`The plan did not fail in ${call.tries} tries, so there is nothing to make small. --tries N tries more often.`)
      return 0
    }
    const file = savePlan(result.plan, `plan-${plan.torture}-${plan.seed}-small.json`)
    const { before, after, failed, plays, checks } = result
    const faults = Object.entries(result.plan.faults).flatMap(([slot, list]) => list.map((fault) => ({ slot, ...fault })))
    const again = `--plan ${file}${planted === undefined ? '' : ` --canary ${planted.name}`}`
    const lines = [
      `${before} faults became ${after} in ${plays} plays; found by: ${checks.join(', ')}`,
      ...faults.map(({ slot, kind, hit, probe }) => `  ${kind} at hit ${hit} of ${probe} in ${slot}`),
      `it fails in ${failed} of ${finalTries} plays: npm run torture -- ${again}`,
    ]
    const found = JSON.stringify({ minimised: file, before, after, failed, of: finalTries, plays, checks, faults })
    for (const line of call.json ? [found] : lines) console.log(line)
    return 1
  },
}

/** The one that was named, or all. */
function asked({ scenario }: Call): readonly Scenario[] {
  return scenario === undefined ? scenarios : [scenarioNamed(scenario)]
}

function planOf(call: Call): Plan {
  if (call.plan === undefined) return makePlan(scenarioNamed(call.scenario!), call.seed, call.seconds)
  const plan = readPlan(call.plan)
  if (call.scenario !== undefined && call.scenario !== plan.torture)
    throw new WrongCall(`${call.plan} is a plan for ${plan.torture}, not for ${call.scenario}.`)
  return plan
}

function canaryOf(call: Call): ReturnType<typeof canaryNamed> {
  const found = canaryNamed(call.canary!)
  if (call.scenario !== undefined && call.scenario !== found.scenario.name)
    throw new WrongCall(`The canary ${call.canary} belongs to ${found.scenario.name}, not to ${call.scenario}.`)
  return found
}

/** Returns the exit code. */
function print({ json }: Call, { report, more, dir }: RunReport): number {
  const shown = { ...report, violations: report.violations.slice(0, violationsShown) }
  for (const line of json ? [JSON.stringify(shown)] : summaryLines(shown, more)) console.log(line)
  if (dir !== undefined) say(`histories: ${dir}`)
  return report.violations.length > 0 || report.vacuous ? 1 : 0
}

function savePlan(plan: Plan, name: string): string {
  const folder = join(root, '.pawl', 'torture')
  mkdirSync(folder, { recursive: true })
  writeFileSync(join(folder, name), `${JSON.stringify(plan, null, 2)}\n`)
  return join(folder, name)
}

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => abandon(`ended by ${signal}`))
process.on('uncaughtException', (error) => abandon(error.stack ?? String(error)))

/** The rig itself broke or was ended. That is neither a violation nor a pass. */
function abandon(why: string): never {
  for (const rig of openRigs) rig.abandon()
  console.error(why)
  process.exit(3)
}

try {
  const call = readCall(process.argv.slice(2))
  process.exit(await verbs[call.verb](call))
} catch (error) {
  if (!(error instanceof WrongCall)) throw error
  console.error(error.message)
  process.exit(2)
}

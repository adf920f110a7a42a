// The ways to play: a storm, a story with or without a planted bug, the crash matrix. Each ends alike: heal, come to rest, stop in order,
// read, check.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Canary } from './canary.ts'
import { generalChecks, type Judged, type Violation } from './checks.ts'
import { readHistory } from './history.ts'
import { calmPlan, makePlan, type Plan } from './plan.ts'
import { faultOf, firedFaults, type RunReport } from './report.ts'
import { Rig, type RigOptions } from './rig.ts'
import { type Case, nameOfCase, type Round, type Scenario, type Traffic } from './scenario.ts'

export interface PlayOptions {
  readonly seed: number
  readonly seconds: number
  readonly say: (line: string) => void
  /** The histories of a clean run are kept when true, those of any other always; with 'never' none are. */
  readonly keep: boolean | 'never'
  readonly canary?: Canary | undefined
}

type Counts = Readonly<Record<string, number>>

/** What a way to play adds to the report, and the kinds of faults that have to happen. */
type Played = Partial<Pick<RunReport['report'], 'torture' | 'seconds' | 'violations' | 'checks'> & Pick<RunReport, 'more'>> & {
  readonly planned?: Iterable<string>
  isVacuous?(faults: Counts, judged: Judged): boolean
}

type Stage = { readonly rig: Rig; readonly traffic: Traffic; readonly plan: Plan }

/** After healing: ended leases, backoffs, suspects one by one, and processes that a poison job still kills; on a busy machine. */
const restMs = 120_000

async function play(
  scenario: Scenario,
  options: PlayOptions & { plan: Plan; rig: RigOptions; restMs?: number },
  act: (stage: Stage) => Promise<Played>,
): Promise<RunReport> {
  const { plan, canary } = options
  const rig = await Rig.open(scenario, { ...options.rig, canary })
  let isKept = options.keep !== 'never'
  try {
    const traffic = new scenario.traffic(rig, plan, await rig.proxy())
    await traffic.prepare()
    const played = await act({ rig, traffic, plan })
    const { judged, restedMs } = await finish(rig, traffic, options.restMs ?? restMs)
    await traffic.close()
    const faults = firedFaults(judged.entries, played.planned ?? [])
    const vacuous = played.isVacuous?.(faults, judged) ?? false
    const known = played.violations ?? []
    const violations = [...known, ...judged.violations.filter((violation) => !isKnown(violation, known))]
    isKept &&= options.keep === true || (canary === undefined && (violations.length > 0 || vacuous))
    const { torture = scenario.name, seconds = options.seconds } = played
    const processes = new Set(judged.entries.map(({ proc }) => proc.split('.')[0])).size - 1
    const { operations, checks } = judged
    const found = { faults, checks: { ...checks, ...played.checks }, vacuous, violations }
    return {
      report: { torture, seed: options.seed, seconds, processes, operations, ...found },
      more: { ...(played.more ?? judged.more), 'at rest after ms': restedMs },
      dir: isKept ? rig.dir : undefined,
    }
  } finally {
    await rig.close({ keep: isKept })
  }
}

async function finish(rig: Rig, traffic: Traffic, timeoutMs: number): Promise<{ judged: Judged; restedMs: number }> {
  await rig.heal()
  const began = performance.now()
  const isDrained = await rig.until(() => rig.scenario.isAtRest(rig, traffic), timeoutMs)
  const restedMs = Math.round(performance.now() - began)
  const late = readHistory(rig.dir, 'rig').filter(({ op }) => op === 'late stop')
  const notStopped = [...late.map(({ slot }) => String(slot)), ...(await rig.stopProcesses())]
  const judged = await rig.scenario.judge(rig, { isDrained, notStopped })
  const general = await generalChecks(rig, judged.entries)
  const checks = { ...judged.checks, ...general.checks }
  return { judged: { ...judged, checks, violations: [...judged.violations, ...general.violations] }, restedMs }
}

// ---- storms

/** It lasts its seconds, and longer while a planned kind of fault has not happened. */
export function runStorm(scenario: Scenario, plan: Plan, options: Omit<PlayOptions, 'seed' | 'seconds'>): Promise<RunReport> {
  const { seed, seconds, leaseMs, beatMs } = plan
  return play(scenario, { ...options, seed, seconds, plan, rig: { leaseMs, beatMs } }, async ({ rig, traffic }) => {
    for (const slot of plan.workers)
      await rig.startProcess(slot, { faults: plan.faults[slot] ?? [], keeperFaults: plan.faults[`${slot} keeper`] ?? [] })
    await traffic.start()
    const planned = new Set<string>(plan.workers.flatMap((slot) => (plan.faults[slot] ?? []).map(({ kind }) => kind)))
    options.say(`storm of ${seconds} s begins`)
    await untilOver(rig, plan, planned, options.say)
    rig.endPauses()
    await traffic.stop()
    options.say('healed; waiting until everything is at rest')
    return { planned, isVacuous: (faults, { shown }) => [...Object.values(faults), ...Object.values(shown)].includes(0) }
  })
}

async function untilOver(rig: Rig, plan: Plan, planned: ReadonlySet<string>, say: PlayOptions['say']): Promise<void> {
  const began = performance.now()
  // On a busy machine a killed process takes many seconds to come back to its next fault.
  const hardEndMs = plan.seconds * 2000 + 60_000
  let saidMs = 0
  let pauses = 0
  for (;;) {
    await sleep(200)
    const nowMs = performance.now() - began
    if (nowMs < plan.seconds * 1000 && nowMs - saidMs < 5000) continue
    const fired = new Set(readHistory(rig.dir).map(faultOf))
    const missing = [...planned].filter((kind) => !fired.has(kind))
    const isDue = nowMs >= plan.seconds * 1000 && missing.length === 0
    if (isDue && (planned.size === 0 || (await (rig.scenario.hasShown ?? hasRefused)(rig)))) return
    if (nowMs - saidMs >= 5000) {
      saidMs = nowMs
      say(`${Math.round(nowMs / 1000)} s, still to come: ${missing.join(', ') || 'nothing'}`)
    }
    if (nowMs >= hardEndMs) return
    // The plan is used up: one more pause per round, until a write of a paused process was refused.
    if (isDue) await rig.pause(plan.workers[pauses++ % plan.workers.length]!)
  }
}

/** A storm in which no write was refused proves nothing of fences. */
async function hasRefused(rig: Rig): Promise<boolean> {
  return (await rig.count('select count(*) as n from pawl.refusal')) > 0
}

// ---- stories and canaries

/** Long enough for a sound run to come to rest; a planted bug may prevent that. */
const storyRestMs = 40_000
const canaryRestMs = 7000

export function runStory(scenario: Scenario, name: string, options: PlayOptions): Promise<RunReport> {
  const story = scenario.stories[name]!
  options.say(`${name}: ${story.tells}`)
  const timing = { rig: { leaseMs: 1500, beatMs: 150 }, restMs: options.canary === undefined ? storyRestMs : canaryRestMs }
  return play(scenario, { ...options, ...timing, plan: calmPlan(scenario, 1) }, async ({ rig, traffic }) => {
    await story.play(rig, traffic)
    return { more: { story: name } }
  })
}

/** The story first, in which the bug shows for certain; if the bug survives that, a storm. */
export async function runCanary(scenario: Scenario, canary: Canary, options: PlayOptions): Promise<RunReport> {
  options.say(`canary ${canary.name}, to be found by "${canary.caughtBy}"`)
  const found = onlyBy(canary, await runStory(scenario, canary.story, { ...options, canary }))
  if (found.report.violations.length > 0) return found
  return onlyBy(canary, await runStorm(scenario, makePlan(scenario, options.seed, options.seconds), { ...options, canary }))
}

/** What its own check found. That a planted bug also kept work from coming to rest in a short time proves nothing. */
export function onlyBy({ name, caughtBy }: Canary, end: RunReport): RunReport {
  const violations = end.report.violations
    .filter(({ check }) => check === caughtBy)
    .map(({ check, message }) => ({ check, message: `canary ${name}: ${message}` }))
  return { ...end, report: { ...end.report, violations } }
}

// ---- the crash matrix

const reachMs = 20_000
const caseRestMs = 40_000
const roundsMax = 12

/** One case after the other on one server. After each, everything must be at rest, and everything so far is checked. */
export function runMatrix(scenario: Scenario, cases: readonly Case[], options: Omit<PlayOptions, 'seconds'>): Promise<RunReport> {
  const began = performance.now()
  const plan = calmPlan(scenario, options.seed)
  return play(scenario, { ...options, seconds: 0, plan, rig: { leaseMs: 1500, beatMs: 150 } }, async (stage) => {
    await stage.rig.startProcess('w2', { concurrency: scenario.matrix.concurrency })
    const violations: Violation[] = []
    const unreached: string[] = []
    for (const [index, each] of cases.entries()) {
      const name = nameOfCase(each)
      const startedMs = performance.now()
      const { isReached, wrong } = await playCase(stage, each, index)
      if (!isReached) unreached.push(name)
      // Work that is still live, and a worker that still runs, are told by `wrong`.
      const judged = await scenario.judge(stage.rig, { isDrained: true, notStopped: [] })
      const found = [...judged.violations.filter((violation) => !isKnown(violation, violations)), ...wrong]
      violations.push(...found.map(({ check, message }) => ({ check, message: `${name}: ${message}` })))
      const outcome = found.length === 0 ? 'clean' : `${found.length} violation(s): ${found[0]!.message}`
      options.say(`${name}: ${isReached ? '' : 'NOT REACHED, '}${outcome} (${Math.round(performance.now() - startedMs)} ms)`)
    }
    return {
      torture: `${scenario.name} matrix`,
      seconds: Math.round((performance.now() - began) / 1000),
      planned: new Set(cases.map(({ kind }) => kind)),
      violations,
      checks: { cases: cases.length - unreached.length },
      more: { cases: cases.length, 'not reached': unreached.join(', ') || 'none' },
      isVacuous: () => unreached.length > 0,
    }
  })
}

/** A process that meets the fault at its probe, a worker beside it that does not, and something to do for both. */
async function playCase({ rig, traffic, plan }: Stage, each: Case, index: number) {
  const { matrix } = rig.scenario
  const { probe, kind, hit } = each
  const slot = `m${index}`
  const isReached = () =>
    kind === 'commit-unknown'
      ? readHistory(rig.dir, 'rig').some((entry) => entry.op === 'answer lost' && entry.slot === slot)
      : rig.wrote('fault', slot) > 0
  const users = matrix.users?.(each, plan.seed)
  const round = (number: number): Round => ({ each, slot, number, key: `${index}/${number}`, isReached })
  const faults = [{ probe, kind, hit }]
  const told = probe.startsWith('keeper.') ? { keeperFaults: faults } : { faults }
  await rig.startProcess(slot, { concurrency: matrix.concurrency, ...users, ...told })
  await rig.until(() => rig.wrote('started', slot) > 0 || isReached(), reachMs)
  for (let number = 0; number < roundsMax && !isReached(); number++) {
    await matrix.provoke(traffic, round(number))
    await rig.until(isReached, matrix.roundMs(each))
  }
  const ended = isReached()
  // Users go on without end: work comes to rest only after they have stopped.
  const isStopped = users === undefined ? undefined : await rig.stopProcess(slot)
  await matrix.release?.(traffic)
  const isAtRest = await rig.until(() => rig.scenario.isAtRest(rig, traffic), caseRestMs)
  const isOrderly = isStopped ?? (await rig.stopProcess(slot))
  const wrong: Violation[] = []
  if (!isAtRest) wrong.push({ check: 'all at rest', message: 'not everything came to an end after the fault' })
  if (!isOrderly) wrong.push({ check: 'all at rest', message: 'the process that met the fault did not stop in order' })
  return { isReached: ended, wrong }
}

function isKnown(violation: Violation, known: readonly Violation[]): boolean {
  return known.some(({ check, message }) => check === violation.check && message.endsWith(violation.message))
}

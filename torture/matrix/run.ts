// Plays the matrix: for each case a worker that meets the fault at its probe, a second worker that does not, and jobs of every shape. After
// each case everything must come to rest, and everything so far is checked.

import { check, type Violation } from '../checker.ts'
import { readFacts } from '../facts.ts'
import { finish } from '../finish.ts'
import { readHistory } from '../history.ts'
import { makePlan } from '../plan.ts'
import { firedFaults, makeReport, type Report } from '../report.ts'
import { Rig } from '../rig.ts'
import type { StormEnd } from '../storm.ts'
import { Workload } from '../workload.ts'
import type { Case } from './cases.ts'

export interface MatrixOptions {
  readonly cases: readonly Case[]
  readonly seed: number
  readonly say: (line: string) => void
  readonly keep: boolean
}

const reachMs = 20_000
const restMs = 30_000

const shapes: readonly [kind: string, count: number, more: object][] = [
  ['tx', 4, { ms: 5 }],
  ['shared', 4, {}],
  ['complete', 3, { ms: 5 }],
  ['outside', 4, { ms: 10 }],
  ['flaky', 2, { failures: 1 }],
  ['slow', 1, { ms: 300 }],
  ['snoozing', 1, {}],
]

export async function runMatrix(options: MatrixOptions): Promise<StormEnd> {
  const plan = { ...makePlan(options.seed, 1), enqueuesUnknown: [] }
  const began = performance.now()
  const rig = await Rig.open({ leaseMs: 1500, beatMs: 150 })
  let keep = true
  try {
    const workload = await Workload.open(rig, plan)
    await rig.startWorker('w2', { concurrency: 4 })
    const violations: Violation[] = []
    const unreached: string[] = []
    for (const [index, each] of options.cases.entries()) {
      const name = `${each.probe} x ${each.kind}`
      const startedMs = performance.now()
      const isReached = await playCase(rig, workload, each, index)
      if (!isReached) unreached.push(name)
      const found = await newViolations(rig, violations)
      violations.push(...found.map(({ check, message }) => ({ check, message: `${name}: ${message}` })))
      options.say(
        `${name}: ${isReached ? '' : 'NOT REACHED, '}${found.length === 0 ? 'clean' : `${found.length} violation(s): ${found[0]!.message}`} (${Math.round(performance.now() - startedMs)} ms)`,
      )
    }
    const end = await finish(rig)
    await workload.close()
    violations.push(...end.violations.filter((violation) => !isKnown(violation, violations)))
    const faults = firedFaults(end.facts, new Set(options.cases.map((each) => each.kind)))
    const seconds = Math.round((performance.now() - began) / 1000)
    const report: Report = makeReport({
      torture: 'matrix',
      plan: { seed: options.seed, seconds },
      processes: 2,
      facts: end.facts,
      faults,
      checks: { ...end.checks, cases: options.cases.length - unreached.length },
      violations,
      isVacuous: unreached.length > 0,
    })
    keep = options.keep || violations.length > 0
    return {
      report,
      more: { cases: options.cases.length, 'not reached': unreached.join(', ') || 'none' },
      dir: keep ? rig.dir : undefined,
    }
  } finally {
    await rig.close({ keep })
  }
}

/** Says whether the fault happened. */
async function playCase(rig: Rig, workload: Workload, { probe, kind, provocation }: Case, index: number): Promise<boolean> {
  const slot = `m${index}`
  const fault = { probe, kind, hit: 1 }
  const isKeeper = probe.startsWith('keeper.')
  const fired = () =>
    kind === 'commit-unknown'
      ? readHistory(rig.dir, 'rig').some((entry) => entry.op === 'answer lost' && entry.slot === slot)
      : readHistory(rig.dir, slot).some((entry) => entry.op === 'fault')
  const enqueue = async (round: number) => {
    for (const [shape, count, more] of shapes) {
      const key = `${index}/${round}/${shape}`
      await workload.enqueueOwn(
        key,
        shape,
        Array.from({ length: count }, (_, item) => ({ ...more, key: `${key}/${item}` })),
      )
    }
  }
  await enqueue(0)
  await rig.startWorker(slot, { concurrency: 4, ...(isKeeper ? { keeperFaults: [fault] } : { faults: [fault] }) })
  await rig.until(() => readHistory(rig.dir, slot).some((entry) => entry.op === 'started') || fired(), reachMs)
  for (let round = 1; round < 8 && !fired(); round++) {
    if (provocation === 'stop') await enqueueBacklog(rig, workload, slot, `${index}/${round}`)
    else if (provocation === 'pause') await rig.pause(slot, true)
    else if (provocation === 'death of another') {
      await enqueue(round)
      rig.signal('w2', 'SIGKILL')
    } else await enqueue(round)
    await rig.until(fired, provocation === 'work' ? 2500 : 5000)
  }
  const isReached = fired()
  await rig.until(
    async () => (await rig.query<{ n: number }>("select count(*)::integer as n from pawl.job where state <> 'dead'"))[0]!.n === 0,
    restMs,
  )
  await rig.stopWorker(slot)
  return isReached
}

/** More than it can run at once, so that it has something to give back when it is told to stop. */
async function enqueueBacklog(rig: Rig, workload: Workload, slot: string, key: string): Promise<void> {
  await workload.enqueueOwn(
    key,
    'outside',
    Array.from({ length: 60 }, (_, item) => ({ key: `${key}/${item}`, ms: 60 })),
  )
  const starts = () => readHistory(rig.dir, slot).filter((entry) => entry.op === 'start').length
  const before = starts()
  await rig.until(() => starts() > before + 6, 5000)
  rig.signal(slot, 'SIGTERM')
}

/** A job that is still live, or a worker that still runs, is not a fault before the end. */
async function newViolations(rig: Rig, known: readonly Violation[]): Promise<Violation[]> {
  const facts = await readFacts(rig, { isDrained: true, notStopped: [] })
  return check(facts).violations.filter((violation) => !isKnown(violation, known))
}

function isKnown(violation: Violation, known: readonly Violation[]): boolean {
  return known.some((other) => other.check === violation.check && other.message.endsWith(violation.message))
}

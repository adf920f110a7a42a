// Projections under torture: three processes that run them, two that append, an operator who mends, pauses, rebuilds and switches, and a
// reader who waits for what it wrote.

import { readLogFacts, runChecks, takeovers } from '../events/facts.ts'
import { isTakenOver } from '../events/rest.ts'
import type { Scenario } from '../scenario.ts'
import { aims } from './aims.ts'
import { canaries } from './canaries.ts'
import { cases } from './cases.ts'
import { checks, readProjectionFacts } from './checks.ts'
import { openStage } from './crash-stage.ts'
import { isAtRest } from './rest.ts'
import { stories } from './stories.ts'
import { ProjectionTraffic } from './traffic.ts'

export const projections: Scenario = {
  name: 'projections',
  audit: new URL('../events/audit.sql', import.meta.url),
  programs: {
    worker: new URL('./worker.ts', import.meta.url),
    operator: new URL('./operator.ts', import.meta.url),
    writer: new URL('../events/writer-process.ts', import.meta.url),
    'keeper-probe': new URL('../events/keeper-probe.ts', import.meta.url),
  },
  aims,
  canaries,
  stories,
  matrix: { cases, open: openStage },
  openTraffic: (rig, plan) => ProjectionTraffic.open(rig, plan),
  isAtRest,
  isTakenOver,
  async judge(rig, end) {
    const facts = await readLogFacts(rig, end, readProjectionFacts)
    const judged = runChecks(checks, facts)
    const asked = facts.entries.filter(({ ph }) => ph === 'invoke').length
    const taken = takeovers(facts.changes)
    const switches = facts.entries.filter(({ op, isEqual }) => op === 'switched' && isEqual === true).length
    const seen = judged.checks['seen and not too early']!
    return {
      entries: facts.entries,
      operations: asked + facts.changes.length + facts.applied.length,
      ...judged,
      shown: { takeovers: taken, refused: facts.refusals, parked: facts.parkings, seen },
      more: {
        events: facts.log.length,
        applied: facts.applied.length,
        takeovers: taken,
        refused: facts.refusals,
        parked: facts.parkings,
        switches,
        observed: judged.checks['checkpoint and state agree']!,
      },
    }
  },
}

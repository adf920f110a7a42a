// The event log under torture: two processes that append in every way, three that give positions and deliver, a stranger who leaves
// transactions open, an outside source.

import { readLogFacts, runChecks, takeovers } from '../events/facts.ts'
import { isTakenOver } from '../events/rest.ts'
import type { Scenario } from '../scenario.ts'
import { aims } from './aims.ts'
import { canaries } from './canaries.ts'
import { cases } from './cases.ts'
import { checks } from './checks.ts'
import { openStage } from './crash-stage.ts'
import { isAtRest } from './rest.ts'
import { stories } from './stories.ts'
import { OutboxTraffic } from './traffic.ts'

export const outbox: Scenario = {
  name: 'outbox',
  audit: new URL('../events/audit.sql', import.meta.url),
  programs: {
    worker: new URL('./worker.ts', import.meta.url),
    writer: new URL('../events/writer-process.ts', import.meta.url),
    'keeper-probe': new URL('../events/keeper-probe.ts', import.meta.url),
  },
  aims,
  canaries,
  stories,
  matrix: { cases, open: openStage },
  openTraffic: (rig, plan) => OutboxTraffic.open(rig, plan),
  isAtRest,
  isTakenOver,
  async judge(rig, end) {
    const facts = await readLogFacts(rig, end, async () => ({}))
    const judged = runChecks(checks, facts)
    const calls = facts.entries.filter(({ op, ph }) => op === 'call' && ph === 'ok').length
    const asked = facts.entries.filter(({ ph }) => ph === 'invoke').length
    const taken = takeovers(facts.changes)
    return {
      entries: facts.entries,
      operations: asked + facts.changes.length,
      ...judged,
      shown: { takeovers: taken, refused: facts.refusals, parked: facts.parkings, strangers: judged.checks['waits for nobody']! },
      more: {
        events: facts.log.length,
        calls,
        'handed over again': calls - facts.log.length,
        takeovers: taken,
        refused: facts.refusals,
        parked: facts.parkings,
      },
    }
  },
}

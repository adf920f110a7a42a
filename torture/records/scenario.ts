// Records under torture: three workers that apply submissions, two processes of users who race for the same scopes, an operator, and a reader
// who looks at any moment.

import type { Scenario } from '../scenario.ts'
import { aims } from './aims.ts'
import { canaries } from './canaries.ts'
import { cases } from './cases.ts'
import { check } from './checks.ts'
import { openStage } from './crash-stage.ts'
import { readFacts } from './facts.ts'
import { foldAll } from './model.ts'
import { readsMeanwhile } from './read-checks.ts'
import { hasShown, isAtRest, isTakenOver } from './rest.ts'
import { stories } from './stories.ts'
import { RecordsTraffic } from './traffic.ts'

export const records: Scenario = {
  name: 'records',
  audit: new URL('./audit.sql', import.meta.url),
  programs: {
    worker: new URL('./worker.ts', import.meta.url),
    client: new URL('./client.ts', import.meta.url),
    'keeper-probe': new URL('./keeper-probe.ts', import.meta.url),
  },
  aims,
  canaries,
  stories,
  matrix: { cases, open: openStage },
  openTraffic: (rig, plan) => RecordsTraffic.open(rig, plan),
  isAtRest,
  isTakenOver,
  hasShown,
  async judge(rig, end) {
    const facts = await readFacts(rig, end)
    const { checks, violations } = check(facts)
    const changes = (from: string | null, to: string) =>
      facts.changes.filter((each) => each.from === from && each.to === to).length
    const refused = (code: string) => facts.entries.filter((entry) => entry.ph === 'fail' && entry.code === code).length
    const shown = {
      applied: changes('submitting', 'submitted'),
      written: changes(null, 'submitted'),
      'taken over': facts.takeOvers,
      refused: facts.refusals,
      failed: changes('submitting', 'failed'),
      resumed: changes('failed', 'submitting'),
      superseded: facts.changes.filter(({ to }) => to === 'superseded').length,
      busy: refused('PAWL_SCOPE_BUSY'),
      'read meanwhile': readsMeanwhile(facts, foldAll(facts)),
    }
    return {
      entries: facts.entries,
      operations: facts.entries.filter((entry) => entry.ph === 'invoke' || entry.op === 'read').length + facts.changes.length,
      checks,
      violations,
      shown,
      more: { ...shown, outrun: refused('PAWL_REVISION_CONFLICT') },
    }
  },
}

// Jobs under torture: three workers, a producer, an operator, and a stranger who leaves transactions open.

import type { Scenario } from '../scenario.ts'
import { aims } from './aims.ts'
import { canaries } from './canaries.ts'
import { cases } from './cases.ts'
import { check } from './checks.ts'
import { openStage } from './crash-stage.ts'
import { readFacts } from './facts.ts'
import { isAtRest, isTakenOver } from './rest.ts'
import { stories } from './stories.ts'
import { Workload } from './workload.ts'

export const jobs: Scenario = {
  name: 'jobs',
  audit: new URL('./audit.sql', import.meta.url),
  programs: {
    worker: new URL('./worker.ts', import.meta.url),
    producer: new URL('./producer.ts', import.meta.url),
    'keeper-probe': new URL('./keeper-probe.ts', import.meta.url),
  },
  aims,
  canaries,
  stories,
  matrix: { cases, open: openStage },
  openTraffic: (rig, plan) => Workload.open(rig, plan),
  isAtRest,
  isTakenOver,
  async judge(rig, end) {
    const facts = await readFacts(rig, end)
    const { checks, violations } = check(facts)
    const done = facts.finished.filter((job) => job.state === 'done').length
    const asked = facts.entries.filter((entry) => entry.ph === 'invoke').length
    const reclaims = facts.attempts.filter((attempt) => attempt.outcome === 'crashed').length
    return {
      entries: facts.entries,
      operations: asked + facts.transitions.length,
      checks,
      violations,
      shown: { reclaims, refused: facts.refusals },
      more: {
        jobs: facts.finished.length + facts.live.length,
        done,
        cancelled: facts.finished.length - done,
        dead: facts.live.length,
        reclaims,
        refused: facts.refusals,
      },
    }
  },
}

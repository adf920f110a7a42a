// Plays every order of a suite's programs and gathers the bad ones.

import { countMerges, merges, Scheduler, type Trace } from './scheduler.ts'
import { type After, afterSql, connector, resetSql, type Statements, vacuumSql } from './stage.ts'
import type { Suite } from './suites.ts'

export interface Bad {
  readonly schedule: string
  readonly wrong: readonly string[]
}

export interface Explored {
  readonly schedules: number
  readonly bad: readonly Bad[]
  readonly deadlocks: number
  /** Schedules in which some step had to wait for a lock. */
  readonly waited: number
}

export interface ExploreOptions {
  readonly url: string
  readonly sql: Statements
  /** Only every so many-th schedule; 1 is all of them. */
  readonly stride?: number
  /** Ends after so many bad ones: enough to know that there are some. */
  readonly badMax?: number
}

/** Each schedule leaves dead rows, and a scan over thousands of them would be what takes the time. */
const vacuumEvery = 200

export async function explore<State>(suite: Suite<State>, options: ExploreOptions): Promise<Explored> {
  const { url, sql, stride = 1, badMax = 20 } = options
  const connect = connector(url)
  const programs = suite.programs(sql)
  const scheduler = await Scheduler.open(programs, connect)
  const setup = connect('setup')
  const bad: Bad[] = []
  let schedules = 0
  let deadlocks = 0
  let waited = 0
  let index = 0
  try {
    for (const turns of merges(programs.map((program) => program.steps.length))) {
      if (index++ % stride !== 0) continue
      if (schedules % vacuumEvery === 0) for (const text of vacuumSql) await setup.query(text)
      await setup.query(resetSql(suite.jobs))
      const state = await suite.before(setup, sql)
      const trace: Trace = await scheduler.play(turns, state)
      const [after] = await setup.query<After>(afterSql)
      schedules++
      deadlocks += trace.deadlocks
      if (trace.waited.length > 0) waited++
      const wrong = suite.judge(state, trace, after!)
      if (wrong.length > 0) bad.push({ schedule: trace.schedule, wrong })
      if (bad.length >= badMax) break
    }
  } finally {
    await scheduler.close()
    await setup.close()
  }
  return { schedules, bad, deadlocks, waited }
}

export function scheduleCount<State>(suite: Suite<State>, sql: Statements): number {
  return countMerges(suite.programs(sql).map((program) => program.steps.length))
}

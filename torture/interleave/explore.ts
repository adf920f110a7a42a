// Plays every order of a suite's programs and gathers the bad ones.

import { countMerges, merges, Scheduler } from './scheduler.ts'
import { type After, afterSql, Engine, type Statements, vacuumSql } from './stage.ts'
import type { Suite } from './suites.ts'

export interface Explored {
  readonly schedules: number
  readonly bad: readonly { readonly schedule: string; readonly wrong: readonly string[] }[]
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

const lengthsOf = <State>({ programs }: Suite<State>): number[] => Object.values(programs).map((steps) => steps.length)

export async function explore<State>(suite: Suite<State>, options: ExploreOptions): Promise<Explored> {
  const { url, sql, stride = 1, badMax = 20 } = options
  const scheduler = await Scheduler.open(suite.programs, (purpose) => new Engine(url, purpose, sql))
  const setup = new Engine(url, 'setup', sql)
  const explored = { schedules: 0, bad: [] as Explored['bad'][number][], deadlocks: 0, waited: 0 }
  let index = 0
  try {
    for (const turns of merges(lengthsOf(suite))) {
      if (index++ % stride !== 0) continue
      if (explored.schedules % vacuumEvery === 0) for (const text of vacuumSql) await setup.query(text)
      await setup.query(`select public.reset(${suite.jobs})`)
      const state = await suite.before(setup)
      const trace = await scheduler.play(turns, state)
      const [after] = await setup.query<After>(afterSql)
      explored.schedules++
      explored.deadlocks += trace.deadlocks
      if (trace.waited.length > 0) explored.waited++
      const wrong = suite.judge(state, trace, after!)
      if (wrong.length > 0) explored.bad.push({ schedule: trace.schedule, wrong })
      if (explored.bad.length >= badMax) break
    }
  } finally {
    await scheduler.close()
    await setup.close()
  }
  return explored
}

export function scheduleCount<State>(suite: Suite<State>): number {
  return countMerges(lengthsOf(suite))
}

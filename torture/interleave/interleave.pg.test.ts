// Small programs of product statements, every order of which is played, and what must hold after each order.

import { afterAll, beforeAll, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../packages/pawl/test/support/database.ts'
import { canaryNamed } from '../scenarios.ts'
import { countMerges, merges, type Programs, Scheduler, type Step, type Trace } from './scheduler.ts'
import {
  type After,
  afterSql,
  type Claimed,
  Engine,
  leaseMs,
  productStatements,
  type Statements,
  setupSql,
  vacuumSql,
  worker,
} from './stage.ts'

interface Suite<State> {
  readonly jobs: number
  readonly programs: Programs<State>
  /** Runs before the first step, outside the schedule. */
  before(engine: Engine): Promise<State>
  /** What is wrong after this schedule; nothing when all is well. */
  judge(state: State, trace: Trace, after: After): string[]
}

/** Whether the larger plays are played as well: more steps, some thousands of orders more. */
const isFull = process.env.PAWL_FULL === '1'

// ---- two holders and one end of lease

interface Holders {
  a: Claimed | undefined
  b: Claimed | undefined
  /** Whose settle was accepted. */
  settledBy: string[]
}

const noHolders = async (): Promise<Holders> => ({ a: undefined, b: undefined, settledBy: [] })

const claimAs = (who: 'a' | 'b'): Step<Holders> => [
  'claim',
  async (state, engine) => {
    state[who] = (await engine.claim(worker[who]))[0]
  },
]

const leaseEnds: Step<unknown> = ['lease ends, asked', (_state, engine) => engine.endLease()]
const close: Step<unknown> = ['close', (_state, engine) => engine.closeDead()]
const rescue: Step<unknown> = ['rescue', (_state, engine) => engine.rescue()]
const commit: Step<unknown> = ['commit', (_state, engine) => engine.query('commit')]

/** Only if it holds the job. */
const ifHeld = (who: 'a' | 'b', name: string, run: (held: Claimed, engine: Engine) => Promise<unknown>): Step<Holders> => [
  name,
  async (state, engine) => state[who] !== undefined && run(state[who], engine),
]

/** Effect and completion in one transaction, as a tx handler or job.complete(tx) has it. */
const inTransaction = (who: 'a' | 'b'): Step<Holders>[] => [
  ifHeld(who, 'effect', ({ id, fence }, engine) =>
    engine.query(`begin; insert into public.effect values (${id}, ${fence}, '${who}')`),
  ),
  ifHeld(who, 'complete', ({ id, fence }, engine) => engine.query(`select pawl.complete_job('', ${id}, ${fence})`)),
  ifHeld(who, 'commit', (_held, engine) => engine.query('commit')),
]

/** Afterwards, under its fence, as the settler does it for run handlers. */
const settle = (who: 'a' | 'b'): Step<Holders> => [
  'settle',
  async (state, engine) => {
    const held = state[who]
    if (held !== undefined && (await engine.settle([held]))[0]!.settled === 1) state.settledBy.push(held.fence)
  },
]

/** PW001 is the answer to a zombie, and its commit afterwards answers ROLLBACK. Anything else is an error. */
function unexpected({ errors }: Trace, isAllowed: (code: string) => boolean = (code) => code === 'PW001'): string[] {
  return errors.filter(({ code }) => !isAllowed(code)).map(({ step, code, message }) => `${step} failed with ${code}: ${message}`)
}

function oneOfEach(jobs: number, after: After): string[] {
  const ids = [...after.live, ...after.finished].map((job) => job.id).sort()
  const wanted = Array.from({ length: jobs }, (_, index) => String(index + 1))
  return ids.join() === wanted.join() ? [] : [`jobs ${wanted.join()} have become ${ids.join() || 'none'}`]
}

const holdersInTransactions: Suite<Holders> = {
  jobs: 1,
  // That A's claim comes at any point is played in full; otherwise A has the job, and everything after that comes in any order.
  before: async (engine) => ({ ...(await noHolders()), a: isFull ? undefined : (await engine.claim(worker.a))[0] }),
  programs: {
    A: [...(isFull ? [claimAs('a')] : []), ...inTransaction('a')],
    T: [leaseEnds],
    B: [close, rescue, claimAs('b'), ...inTransaction('b')],
  },
  judge(_state, trace, { finished, effects, ...after }) {
    const done = finished.find((job) => job.outcome === 'done')
    const wrong = [...unexpected(trace), ...oneOfEach(1, { finished, effects, ...after })]
    if (effects.length > 1) wrong.push(`the effect was applied ${effects.length} times`)
    if (done === undefined && effects.length > 0) wrong.push('there is an effect, and the job is not done')
    if (done !== undefined && effects.length === 0) wrong.push('the job is done without its effect')
    if (done !== undefined && effects.some(({ fence }) => fence !== done.fence))
      wrong.push(`the job was held under fence ${done.fence}, and the effect of fence ${effects[0]!.fence} was accepted`)
    return wrong
  },
}

const holdersWithSettle: Suite<Holders> = {
  jobs: 1,
  before: noHolders,
  programs: {
    A: [claimAs('a'), settle('a')],
    T: [leaseEnds],
    B: [close, rescue, claimAs('b'), settle('b')],
    // A second rescuer: what one has taken over the other leaves alone.
    R: [rescue],
  },
  judge({ settledBy }, trace, after) {
    const done = after.finished.find((job) => job.outcome === 'done')
    const wrong = [...unexpected(trace), ...oneOfEach(1, after)]
    if (settledBy.length > 1) wrong.push(`two settles were accepted: of fences ${settledBy.join(' and ')}`)
    if (done !== undefined && settledBy[0] !== done.fence)
      wrong.push(`the job was held under fence ${done.fence}, and the settle of fence ${settledBy[0]} was accepted`)
    if (done === undefined && settledBy.length > 0) wrong.push('a settle was accepted, and the job is not done')
    return wrong
  },
}

// ---- renewal, cancel, rescue and settle of overlapping sets

interface Overlap {
  readonly held: readonly Claimed[]
  /** In the order in which it happened: which incarnations were closed, and whether each renewal succeeded. */
  readonly closed: number[]
  readonly beats: boolean[]
}

const cancelling = (name: string, ids: readonly string[], begin: string, end: string): Step<Overlap> => [
  name,
  async (_state, engine) => {
    if (begin !== '') await engine.query(begin)
    for (const id of ids) await engine.cancel(id)
    if (end !== '') await engine.query(end)
  },
]

const overlappingSets: Suite<Overlap> = {
  jobs: 4,
  async before(engine) {
    const held = await engine.claim(worker.a, 4)
    return { held: [...held].sort((a, b) => Number(a.id) - Number(b.id)), closed: [], beats: [] }
  },
  programs: {
    // Ends come in the order in which handlers return, which is any.
    S: [
      ['settle 3, 1', ({ held }, engine) => engine.settle([held[2]!, held[0]!])],
      ['fail 4, 2', ({ held }, engine) => engine.settleFailed([held[3]!, held[1]!], worker.a)],
    ],
    K: [['beat', async ({ beats }, engine) => beats.push(await engine.beat(worker.a))]],
    // An operator's own transaction, in the order that ARCHITECTURE.md asks for: by id.
    C: [
      cancelling('cancel 1, 2', ['1', '2'], 'begin', ''),
      cancelling('cancel 3, 4', ['3', '4'], '', isFull ? '' : 'commit'),
      ...(isFull ? [commit] : []),
    ],
    R: [
      leaseEnds,
      [
        'close, rescue',
        async ({ closed }, engine) => {
          closed.push(...(await engine.closeDead()).map(({ id }) => id))
          await engine.rescue()
        },
      ],
    ],
  },
  judge({ closed, beats }, trace, after) {
    const wrong = [...unexpected(trace), ...oneOfEach(4, after)]
    if (closed.length === 0 && beats[0] !== true)
      wrong.push(`it was not closed, and its renewal was refused in ${trace.schedule}`)
    for (const step of trace.waited) if (step.startsWith('R') || step.startsWith('K')) wrong.push(`${step} had to wait`)
    return wrong
  },
}

// ---- a slow tx handler: a transaction that guards its job for two leases while beats go on

type Slow = { readonly held: Claimed; readonly beats: boolean[] }

const slowHandler: Suite<Slow> = {
  jobs: 1,
  before: async (engine) => ({ held: (await engine.claim(worker.a))[0]!, beats: [] }),
  programs: {
    H: [
      ['guard', ({ held: { id, fence } }, engine) => engine.query(`begin; select pawl.guard_job('', ${id}, ${fence})`)],
      [
        'effect, complete',
        ({ held: { id, fence } }, engine) => {
          const complete = `insert into public.effect values (${id}, ${fence}, 'h'); select pawl.complete_job('', ${id}, ${fence})`
          return engine.query(`${complete}${isFull ? '' : '; commit'}`)
        },
      ],
      ...(isFull ? [commit] : []),
    ],
    // Each beat comes in time; together they last longer than a lease.
    K: [1, 2].flatMap((n): Step<Slow>[] => [
      ['most of a lease passes', (_state, engine) => engine.moveOn(leaseMs * 0.7)],
      [`beat ${n}`, async ({ beats }, engine) => beats.push(await engine.beat(worker.a))],
    ]),
    R: [
      ['ask', (_state, engine) => engine.ask()],
      ['close, rescue', (_state, engine) => engine.closeDead().then(() => engine.rescue())],
    ],
  },
  judge({ beats }, trace, { closed, effects, finished }) {
    const wrong = unexpected(trace, () => false)
    if (beats.includes(false) || closed.includes(worker.a)) wrong.push('the lease was lost')
    for (const step of trace.waited) if (!step.startsWith('H')) wrong.push(`${step} had to wait after the handler's lock`)
    if (effects.length !== 1 || finished.length !== 1)
      wrong.push(`${effects.length} effect(s), ${finished.length} history row(s)`)
    return wrong
  },
}

// ---- playing

interface Explored {
  readonly schedules: number
  readonly bad: readonly { readonly schedule: string; readonly wrong: readonly string[] }[]
  readonly deadlocks: number
  /** Schedules in which some step had to wait for a lock. */
  readonly waited: number
}

interface ExploreOptions {
  readonly url: string
  readonly sql: Statements
  /** Only every n-th schedule; 1 is all of them. */
  readonly stride?: number
  /** Ends after this number of bad schedules. */
  readonly badMax?: number
}

/** Each schedule leaves dead rows, and a scan over thousands of them would be what takes the time. */
const vacuumEvery = 200

const lengthsOf = <State>({ programs }: Suite<State>): number[] => Object.values(programs).map((steps) => steps.length)

async function explore<State>(suite: Suite<State>, options: ExploreOptions): Promise<Explored> {
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

function scheduleCount<State>(suite: Suite<State>): number {
  return countMerges(lengthsOf(suite))
}

let db: TestDatabase
beforeAll(async () => {
  db = await createDatabase()
  await db.query(setupSql)
})
afterAll(() => db.drop())

const testMs = 300_000

/** A full run plays every order; `npm test` every eighth, which ones changes with the statements. */
const stride = process.env.PAWL_FULL === undefined ? 8 : 1

/** None of the orders is bad. */
async function everyOrder<State>(suite: Suite<State>): Promise<Awaited<ReturnType<typeof explore>>> {
  const explored = await explore(suite, { url: db.url, sql: productStatements, stride })
  expect(explored.bad).toEqual([])
  expect(explored.deadlocks).toBe(0)
  expect(explored.schedules).toBe(Math.ceil(scheduleCount(suite) / stride))
  return explored
}

test('[K11] two holders, a lease end, claim to completion: every order holds', {
  timeout: testMs,
}, async () => {
  await everyOrder(holdersInTransactions)
})

test('[K11] two holders, a lease end and two rescuers: every order holds', {
  timeout: testMs,
}, async () => {
  await everyOrder(holdersWithSettle)
})

test('[K11] renewal, cancel, rescue, settle of overlapping sets: no order deadlocks', {
  timeout: testMs,
}, async () => {
  const { waited } = await everyOrder(overlappingSets)
  // Orders in which a session waits are the interesting ones: without them this would prove nothing.
  expect(waited).toBeGreaterThan(0)
})

test('[K11] a transaction that guards its job beyond the lease loses no lease', { timeout: testMs }, async () => {
  await everyOrder(slowHandler)
})

test('[K11] the same orders without the fence have bad ones', { timeout: testMs }, async () => {
  const { statements, functions } = canaryNamed('no-fence').canary
  const unfenced: Statements = {
    ...productStatements,
    settle: {
      ...productStatements.settle,
      name: 'unfenced_settle',
      text: statements!.settle!(productStatements.settle.text, ''),
    },
  }
  const settled = await explore(holdersWithSettle, { url: db.url, sql: unfenced, badMax: 3 })
  expect(settled.bad.length).toBe(3)

  const [original] = await db.query<{ definition: string }>(
    "select pg_get_functiondef(p.oid) as definition from pg_proc p where p.proname = 'complete_job' and p.pronamespace = 'pawl'::regnamespace",
  )
  await db.query(functions!.complete_job!(original!.definition))
  try {
    const completed = await explore(holdersInTransactions, { url: db.url, sql: productStatements, badMax: 3 })
    expect(completed.bad.length).toBe(3)
  } finally {
    await db.query(original!.definition)
  }
})

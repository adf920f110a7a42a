// The small programs whose every order is played, and what must hold after each order.

import type { Connection } from '../../packages/pawl/src/db/driver.ts'
import type { Program, Step, Trace } from './scheduler.ts'
import {
  type After,
  ask,
  beat,
  type Claimed,
  cancel,
  claimOne,
  closeDead,
  leaseMs,
  moveOn,
  rescue,
  type Statements,
  settle,
  settleFailed,
  worker,
} from './stage.ts'

export interface Suite<State> {
  readonly name: string
  readonly jobs: number
  programs(sql: Statements): readonly Program<State>[]
  /** Runs before the first step, outside the schedule. */
  before(connection: Connection, sql: Statements): Promise<State>
  /** What is wrong after this schedule; nothing when all is well. */
  judge(state: State, trace: Trace, after: After): string[]
}

// ---- two holders and one end of lease

interface Holders {
  a: Claimed | undefined
  b: Claimed | undefined
  /** Whose settle was accepted. */
  settledBy: string[]
}

const noHolders = async (): Promise<Holders> => ({ a: undefined, b: undefined, settledBy: [] })

const claimAs = (who: 'a' | 'b', sql: Statements): Step<Holders> => ({
  name: 'claim',
  run: async (state, connection) => {
    state[who] = (await claimOne(connection, sql, worker[who]))[0]
  },
})

const lease = (sql: Statements): Step<Holders> => ({
  name: 'lease ends, asked',
  run: (_state, connection) => moveOn(connection, leaseMs * 2).then(() => ask(connection, sql)),
})
const takeOver = (sql: Statements): Step<Holders>[] => [
  { name: 'close', run: (_state, connection) => closeDead(connection, sql) },
  { name: 'rescue', run: (_state, connection) => rescue(connection, sql) },
]

/** Effect and completion in one transaction, as a tx handler or job.complete(tx) has it. */
const inTransaction = (who: 'a' | 'b'): Step<Holders>[] => [
  {
    name: 'effect',
    run: async (state, connection) => {
      const held = state[who]
      if (held !== undefined)
        await connection.query(`begin; insert into public.effect values (${held.id}, ${held.fence}, '${who}')`)
    },
  },
  {
    name: 'complete',
    run: async (state, connection) => {
      const held = state[who]
      if (held !== undefined) await connection.query(`select pawl.complete_job('', ${held.id}, ${held.fence})`)
    },
  },
  {
    name: 'commit',
    run: async (state, connection) => {
      if (state[who] !== undefined) await connection.query('commit')
    },
  },
]

/** Afterwards, under its fence, as the settler does it for run handlers. */
const settleStep = (who: 'a' | 'b', sql: Statements): Step<Holders> => ({
  name: 'settle',
  run: async (state, connection) => {
    const held = state[who]
    if (held === undefined) return
    const [row] = await settle(connection, sql, [held])
    if (row!.settled === 1) state.settledBy.push(held.fence)
  },
})

/** PW001 is the answer to a zombie, and its commit afterwards answers ROLLBACK. Anything else is an error. */
function unexpected(trace: Trace): string[] {
  return trace.errors
    .filter((error) => error.code !== 'PW001')
    .map((error) => `${error.step} failed with ${error.code}: ${error.message}`)
}

function oneOfEach(jobs: number, after: After): string[] {
  const ids = [...after.live, ...after.finished].map((job) => job.id).sort()
  const wanted = Array.from({ length: jobs }, (_, index) => String(index + 1))
  return ids.join() === wanted.join() ? [] : [`jobs ${wanted.join()} have become ${ids.join() || 'none'}`]
}

/** Whether the larger plays are played as well: more steps, some thousands of orders more. */
export const isFull = process.env.PAWL_FULL === '1'

export const holdersInTransactions: Suite<Holders> = {
  name: 'two holders and one end of lease, effect and completion in one transaction',
  jobs: 1,
  // That A's claim comes at any point is played in full; otherwise A has the job, and everything after that comes in any order.
  before: async (connection, sql) => ({
    ...(await noHolders()),
    a: isFull ? undefined : (await claimOne(connection, sql, worker.a))[0],
  }),
  programs: (sql) => [
    { letter: 'A', steps: [...(isFull ? [claimAs('a', sql)] : []), ...inTransaction('a')] },
    { letter: 'T', steps: [lease(sql)] },
    { letter: 'B', steps: [...takeOver(sql), claimAs('b', sql), ...inTransaction('b')] },
  ],
  judge(_state, trace, after) {
    const done = after.finished.find((job) => job.outcome === 'done')
    const wrong = [...unexpected(trace), ...oneOfEach(1, after)]
    if (after.effects.length > 1) wrong.push(`the effect was applied ${after.effects.length} times`)
    if (done === undefined && after.effects.length > 0) wrong.push('there is an effect, and the job is not done')
    if (done !== undefined && after.effects.length === 0) wrong.push('the job is done without its effect')
    if (done !== undefined && after.effects.some((effect) => effect.fence !== done.fence)) {
      wrong.push(`the job was held under fence ${done.fence}, and the effect of fence ${after.effects[0]!.fence} was accepted`)
    }
    return wrong
  },
}

export const holdersWithSettle: Suite<Holders> = {
  name: 'two holders and one end of lease, settled afterwards',
  jobs: 1,
  before: noHolders,
  programs: (sql) => [
    { letter: 'A', steps: [claimAs('a', sql), settleStep('a', sql)] },
    { letter: 'T', steps: [lease(sql)] },
    { letter: 'B', steps: [...takeOver(sql), claimAs('b', sql), settleStep('b', sql)] },
    // A second rescuer: what one has taken over the other leaves alone.
    { letter: 'R', steps: takeOver(sql).slice(1) },
  ],
  judge(state, trace, after) {
    const done = after.finished.find((job) => job.outcome === 'done')
    const wrong = [...unexpected(trace), ...oneOfEach(1, after)]
    if (state.settledBy.length > 1) wrong.push(`two settles were accepted: of fences ${state.settledBy.join(' and ')}`)
    if (done !== undefined && state.settledBy[0] !== done.fence)
      wrong.push(`the job was held under fence ${done.fence}, and the settle of fence ${state.settledBy[0]} was accepted`)
    if (done === undefined && state.settledBy.length > 0) wrong.push('a settle was accepted, and the job is not done')
    return wrong
  },
}

// ---- renewal, cancel, rescue and settle of overlapping sets

interface Overlap {
  readonly held: readonly Claimed[]
  /** In the order in which it happened: who was closed, and each renewal with whether it succeeded. */
  readonly closed: number[]
  readonly beats: boolean[]
}

export const overlappingSets: Suite<Overlap> = {
  name: 'renewal, cancel, rescue and settle of overlapping sets',
  jobs: 4,
  async before(connection, sql) {
    const held = await claimOne(connection, sql, worker.a, 4)
    return { held: [...held].sort((a, b) => Number(a.id) - Number(b.id)), closed: [], beats: [] }
  },
  programs: (sql) => [
    {
      // Ends come in the order in which handlers return, which is any.
      letter: 'S',
      steps: [
        { name: 'settle 3, 1', run: ({ held }, connection) => settle(connection, sql, [held[2]!, held[0]!]) },
        { name: 'fail 4, 2', run: ({ held }, connection) => settleFailed(connection, sql, [held[3]!, held[1]!], worker.a) },
      ],
    },
    {
      letter: 'K',
      steps: [
        {
          name: 'beat',
          run: async (state, connection) => {
            state.beats.push((await beat(connection, sql, worker.a)).length === 1)
          },
        },
      ],
    },
    {
      // An operator's own transaction, in the order that ARCHITECTURE.md asks for: by id.
      letter: 'C',
      steps: [
        {
          name: 'cancel 1, 2',
          run: (_state, connection) =>
            connection
              .query('begin')
              .then(() => cancel(connection, sql, '1'))
              .then(() => cancel(connection, sql, '2')),
        },
        {
          name: 'cancel 3, 4',
          run: async (_state, connection) => {
            await cancel(connection, sql, '3')
            await cancel(connection, sql, '4')
            if (!isFull) await connection.query('commit')
          },
        },
        ...(isFull ? [{ name: 'commit', run: (_state: Overlap, connection: Connection) => connection.query('commit') }] : []),
      ],
    },
    {
      letter: 'R',
      steps: [
        {
          name: 'lease ends, ask',
          run: (_state, connection) => moveOn(connection, leaseMs * 2).then(() => ask(connection, sql)),
        },
        {
          name: 'close, rescue',
          run: async (state, connection) => {
            state.closed.push(...(await closeDead(connection, sql)).map(({ id }) => id))
            await rescue(connection, sql)
          },
        },
      ],
    },
  ],
  judge(state, trace, after) {
    const wrong = [...unexpected(trace), ...oneOfEach(4, after)]
    const order = trace.schedule
    if (state.closed.length === 0 && state.beats[0] !== true)
      wrong.push(`nobody closed it, and its renewal was refused in ${order}`)
    for (const step of trace.waited) if (step.startsWith('R') || step.startsWith('K')) wrong.push(`${step} had to wait`)
    return wrong
  },
}

// ---- a slow tx handler

interface Slow {
  readonly held: Claimed
  readonly beats: number[]
  isLost: boolean
}

export const slowHandler: Suite<Slow> = {
  name: 'a transaction that guards its job for two leases while beats go on',
  jobs: 1,
  async before(connection, sql) {
    return { held: (await claimOne(connection, sql, worker.a))[0]!, beats: [], isLost: false }
  },
  programs: (sql) => [
    {
      letter: 'H',
      steps: [
        {
          name: 'guard',
          run: ({ held }, connection) => connection.query(`begin; select pawl.guard_job('', ${held.id}, ${held.fence})`),
        },
        {
          name: 'effect, complete',
          run: ({ held }, connection) =>
            connection.query(
              `insert into public.effect values (${held.id}, ${held.fence}, 'h'); select pawl.complete_job('', ${held.id}, ${held.fence})${isFull ? '' : '; commit'}`,
            ),
        },
        ...(isFull ? [{ name: 'commit', run: (_state: Slow, connection: Connection) => connection.query('commit') }] : []),
      ],
    },
    {
      // Each beat comes in time; together they last longer than a lease.
      letter: 'K',
      steps: [1, 2].flatMap((n): Step<Slow>[] => [
        { name: 'most of a lease passes', run: (_state, connection) => moveOn(connection, leaseMs * 0.7) },
        {
          name: `beat ${n}`,
          run: async (state, connection) => {
            state.beats.push((await beat(connection, sql, worker.a)).length)
          },
        },
      ]),
    },
    {
      letter: 'R',
      steps: [
        { name: 'ask', run: (_state, connection) => ask(connection, sql) },
        { name: 'close, rescue', run: (_state, connection) => closeDead(connection, sql).then(() => rescue(connection, sql)) },
      ],
    },
  ],
  judge(state, trace, after) {
    const wrong = trace.errors.map((error) => `${error.step} failed with ${error.code}: ${error.message}`)
    if (state.beats.some((rows) => rows !== 1) || after.closed.includes(worker.a)) wrong.push('the lease was lost')
    for (const step of trace.waited) if (!step.startsWith('H')) wrong.push(`${step} had to wait behind the handler`)
    if (after.effects.length !== 1 || after.finished.length !== 1)
      wrong.push(`${after.effects.length} effect(s), ${after.finished.length} history row(s)`)
    return wrong
  },
}

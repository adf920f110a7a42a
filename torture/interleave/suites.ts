// The small programs whose every order is played, and what must hold after each order.

import type { Programs, Step, Trace } from './scheduler.ts'
import { type After, type Claimed, type Engine, leaseMs, worker } from './stage.ts'

export interface Suite<State> {
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

export const holdersInTransactions: Suite<Holders> = {
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

export const holdersWithSettle: Suite<Holders> = {
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

export const overlappingSets: Suite<Overlap> = {
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

interface Slow {
  readonly held: Claimed
  readonly beats: boolean[]
}

export const slowHandler: Suite<Slow> = {
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

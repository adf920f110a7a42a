// Every order of a few statements. Each program is a list of steps on a connection of its own, one statement a step; a schedule says whose
// turn it is. A step that waits for a lock is left waiting and its program stops until the lock is free, as PostgreSQL's own
// isolation tester does it. The schedule string reproduces a run exactly.

import { setTimeout as sleep } from 'node:timers/promises'
import { sqlState } from '../../packages/pawl/src/db/classify.ts'
import type { Engine } from './stage.ts'

export type Step<State> = readonly [name: string, run: (state: State, engine: Engine) => Promise<unknown>]
/** By the letter that a program has in schedules. */
export type Programs<State> = Readonly<Record<string, readonly Step<State>[]>>

export interface Trace {
  /** Whose turn it was: 'AABTB'. */
  readonly schedule: string
  readonly errors: readonly { readonly step: string; readonly code: string; readonly message: string }[]
  /** Steps that had to wait for a lock. */
  readonly waited: readonly string[]
  readonly deadlocks: number
}

/** Waits for it up to a limit; leaves no timer.  */
async function soon(work: Promise<void> | undefined, ms: number): Promise<void> {
  const timer = new AbortController()
  await Promise.race([work, sleep(ms, undefined, { signal: timer.signal }).catch(() => undefined)])
  timer.abort()
}

/** All merges of programs of these lengths, each as the indexes of whose turn it is. */
export function* merges(lengths: readonly number[]): Generator<number[]> {
  const left = [...lengths]
  const turns: number[] = []
  const total = lengths.reduce((sum, length) => sum + length, 0)
  function* extend(): Generator<number[]> {
    if (turns.length === total) yield [...turns]
    for (let index = 0; index < left.length; index++) {
      if (left[index] === 0) continue
      left[index]!--
      turns.push(index)
      yield* extend()
      turns.pop()
      left[index]!++
    }
  }
  yield* extend()
}

export function countMerges(lengths: readonly number[]): number {
  let count = 1
  let placed = 0
  for (const length of lengths) for (let n = 1; n <= length; n++) count = (count * ++placed) / n
  return Math.round(count)
}

interface Player<State> {
  readonly letter: string
  readonly steps: readonly Step<State>[]
  readonly engine: Engine
  readonly pid: number
  next: number
  waiting: Promise<void> | undefined
  isWaiting: boolean
}

export class Scheduler<State> {
  readonly #players: Player<State>[]
  readonly #monitor: Engine

  private constructor(players: Player<State>[], monitor: Engine) {
    this.#players = players
    this.#monitor = monitor
  }

  static async open<State>(programs: Programs<State>, connect: (purpose: string) => Engine): Promise<Scheduler<State>> {
    const players = Object.entries(programs).map(async ([letter, steps]) => {
      const engine = connect(`program ${letter}`)
      const [row] = await engine.query<{ pid: number }>('select pg_backend_pid() as pid')
      // A circle of waits shows at once, and not after the second that is the default.
      await engine.query("set deadlock_timeout = '20ms'")
      // How long a step waits is for the schedule to say, not for how busy the machine is.
      await engine.query("set lock_timeout = '25s'")
      return { letter, steps, engine, pid: row!.pid, next: 0, waiting: undefined, isWaiting: false }
    })
    return new Scheduler(await Promise.all(players), connect('monitor'))
  }

  async close(): Promise<void> {
    await Promise.all([...this.#players.map(({ engine }) => engine.close()), this.#monitor.close()])
  }

  async play(turns: readonly number[], state: State): Promise<Trace> {
    const errors: { step: string; code: string; message: string }[] = []
    const waited: string[] = []
    for (const player of this.#players) player.next = 0
    const take = async (player: Player<State>) => {
      const step = player.steps[player.next]
      if (step === undefined) return
      player.next++
      const name = `${player.letter}${player.next} ${step[0]}`
      const run = async () => {
        try {
          await step[1](state, player.engine)
        } catch (error) {
          errors.push({ step: name, code: sqlState(error) ?? 'none', message: String(error) })
        }
        player.isWaiting = false
      }
      player.isWaiting = true
      player.waiting = run()
      if (await this.#isBlocked(player)) waited.push(name)
    }
    for (const turn of turns) {
      const player = this.#players[turn]!
      // It is still waiting for a lock: its turn comes when it has got it.
      if (player.isWaiting) continue
      await take(player)
      await this.#settleWaiting()
    }
    // Programs that waited go on, one step at a time.
    for (;;) {
      const left = this.#players.filter(({ isWaiting, next, steps }) => isWaiting || next < steps.length)
      if (left.length === 0) break
      const free = left.find(({ isWaiting }) => !isWaiting)
      if (free !== undefined) await take(free)
      else await Promise.race(left.map(({ waiting }) => waiting!))
      await this.#settleWaiting()
    }
    const schedule = turns.map((turn) => this.#players[turn]!.letter).join('')
    return { schedule, errors, waited, deadlocks: errors.filter(({ code }) => code === '40P01').length }
  }

  /** Whether the step waits for a lock of another program; false once it has ended. */
  async #isBlocked(player: Player<State>): Promise<boolean> {
    for (;;) {
      await soon(player.waiting, 3)
      if (!player.isWaiting) return false
      // By one of the others: a vacuum that is in the way for a moment is not part of the play.
      const [row] = await this.#monitor.query<{ blocked: boolean }>(
        `select pg_blocking_pids(${player.pid}) && '{${this.#players.map(({ pid }) => pid).join()}}'::integer[] as blocked`,
      )
      if (row!.blocked && player.isWaiting) return true
    }
  }

  /** After every step: a program that waited either goes on now, to its end, or is seen to wait still. */
  async #settleWaiting(): Promise<void> {
    for (const player of this.#players) if (player.isWaiting) await this.#isBlocked(player)
  }
}

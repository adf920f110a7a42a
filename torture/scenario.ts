// The part of the rig that belongs to a capability: the tables that are recorded, its programs and its traffic, where its faults strike, its stories
// with the bugs that they show, and how a run is judged. The rest of the rig is the same for all.

import { setTimeout as sleep } from 'node:timers/promises'
import type { ProbeName } from 'pawl/testing'
import type { FaultProxy } from '../packages/pawl/test/support/fault-proxy.ts'
import type { Bug } from './canary.ts'
import type { GeneralCheckName, Judged, RunEnd } from './checks.ts'
import { type Aims, type FaultKind, type Plan, purposeOf, type Random, stream } from './plan.ts'
import type { Caller, CallerOptions } from './pool.ts'
import type { Subject } from './process.ts'
import type { Recorded } from './recorder.ts'
import type { ProcessOptions, Rig } from './rig.ts'

export interface Scenario<T extends Traffic = Traffic> {
  readonly name: string
  readonly recorded: readonly Recorded[]
  /** SQL: tables of the schema torture in which users and handlers note what they did. They enforce nothing of what is checked. */
  readonly ledgers: string
  /** What its processes run, by role; each scenario has a `worker`. */
  readonly programs: Readonly<Record<string, (subject: Subject) => Promise<void>>>
  readonly aims: Aims
  readonly traffic: new (rig: Rig, plan: Plan, proxy: FaultProxy) => T
  readonly stories: Readonly<Record<string, Story<T>>>
  readonly matrix: Matrix<T>
  /** Whether everything that was asked for has come to its end. */
  isAtRest(rig: Rig, traffic: T): Promise<boolean>
  /** The table of what its workers hold. */
  readonly holds: 'job' | 'cursor'
  /** Whether a storm has shown what it is there for, and may end. Without it: whether a write was refused. */
  hasShown?(rig: Rig): Promise<boolean>
  judge(rig: Rig, end: RunEnd): Promise<Judged>
}

/** What users and operators do. A storm starts its loops; stories and the matrix call its methods. */
export abstract class Traffic {
  readonly rig: Rig
  readonly plan: Plan
  /** The way of the rig's own connections. */
  readonly proxy: FaultProxy
  readonly random: Random
  /** Of the application in the rig's own process. */
  readonly caller: CallerOptions
  readonly #stop = new AbortController()
  readonly #loops: Promise<unknown>[] = []
  readonly #slots: string[] = []

  constructor(rig: Rig, plan: Plan, proxy: FaultProxy) {
    this.rig = rig
    this.plan = plan
    this.proxy = proxy
    this.random = stream(plan.seed, 'workload')
    this.caller = { url: proxy.url, name: 'rig.1', max: 6, history: rig.history }
  }

  /** What the rig's own users call. */
  abstract readonly user: Caller
  async prepare(): Promise<void> {}
  abstract start(): Promise<void>

  /** A process of users, with the faults that the plan has for it. */
  async startUsers(slot: string, options: ProcessOptions): Promise<void> {
    this.#slots.push(slot)
    await this.rig.startProcess(slot, { faults: this.plan.faults[slot] ?? [], ...options })
  }

  /** One turn after the other until the end of the storm. */
  every(everyMs: number, turn: () => Promise<unknown>): void {
    const { signal } = this.#stop
    const loop = async () => {
      while (!signal.aborted) {
        await turn().catch((error: unknown) => this.rig.history.write('turn failed', { error: String(error) }))
        await sleep(everyMs, undefined, { signal }).catch(() => undefined)
      }
    }
    this.#loops.push(loop())
  }

  get isStopped(): boolean {
    return this.#stop.signal.aborted
  }

  async stop(): Promise<void> {
    this.#stop.abort()
    await Promise.all([...this.#loops, ...this.#slots.map((slot) => this.rig.stopProcess(slot))])
  }

  async close(): Promise<void> {
    await this.user.close()
    await this.proxy.stop()
  }
}

/** A small run with one fault, step by step. A storm meets such moments by chance; here they happen for certain. */
export interface Story<T extends Traffic = Traffic, Check extends string = string> {
  readonly tells: string
  play(rig: Rig, traffic: T): Promise<void>
  /** The planted bugs that must show in it, by name. */
  readonly shows?: Readonly<Record<string, Bug<Check | GeneralCheckName>>>
}

// ---- the crash matrix

/** Every probe times everything that can go wrong there. */
export interface Matrix<T extends Traffic = Traffic> {
  readonly cases: readonly Case[]
  /** Of the process that meets the fault, and of the worker beside it. */
  readonly concurrency: number
  /** What the process that meets the fault runs, where that is not a worker: it goes on until it is stopped. */
  users?(each: Case, seed: number): Pick<ProcessOptions, 'role' | 'how'> | undefined
  provoke(traffic: T, round: Round): Promise<void>
  roundMs(each: Case): number
  /** Before everything must come to rest. */
  release?(traffic: T): Promise<void>
}

export interface Round {
  readonly each: Case
  readonly slot: string
  readonly number: number
  readonly key: string
  readonly isReached: () => boolean
}

export interface Case {
  readonly probe: ProbeName
  readonly kind: FaultKind
  readonly hit: number
  /** What has to happen around a process before it comes to the probe. */
  readonly provocation: string
  /** Tells cases apart that share a probe and a kind. */
  readonly variant?: string
}

const matrixKinds = ['kill', 'pause', 'reset', 'sql-40001', 'commit-unknown'] as const

export interface Probed {
  readonly probes: readonly ProbeName[]
  /** What has to happen around a process before it comes to some of them; for the others it is 'work'. A probe may be in two. */
  readonly provocations: Readonly<Record<string, readonly ProbeName[]>>
  /** No statement runs there, so none can fail: a 40001 would be an error that no database gives. */
  readonly withoutStatement: readonly ProbeName[]
  /** Reached once in the life of a process. */
  readonly once: readonly ProbeName[]
  /** What it takes to come there again. */
  readonly again?: Partial<Record<ProbeName, string>>
  /** Provocations whose work is committed at the probe: no statement and no answer is left to fail. */
  readonly committed?: readonly string[]
}

/** The first hit meets a process that has done nothing yet; by the third it has a buffer and a warm pool. */
export function crashCases({ probes, provocations, withoutStatement, once, again = {}, committed = [] }: Probed): Case[] {
  const casesOf = (probe: ProbeName, hit: number): Case[] => {
    const asked = Object.keys(provocations).filter((provocation) => provocations[provocation]!.includes(probe))
    return (asked.length > 0 ? asked : ['work']).flatMap((provocation) =>
      matrixKinds
        .filter((kind) => kind !== 'sql-40001' || !(withoutStatement.includes(probe) || committed.includes(provocation)))
        .filter((kind) => kind !== 'commit-unknown' || (purposeOf(probe) !== undefined && !committed.includes(provocation)))
        .map((kind) => ({
          ...{ probe, kind, hit, provocation: (hit > 1 && again[probe]) || provocation },
          ...(asked.length > 1 ? { variant: provocation } : {}),
        })),
    )
  }
  return [
    ...probes.flatMap((probe) => casesOf(probe, 1)),
    ...probes.filter((probe) => !once.includes(probe)).flatMap((probe) => casesOf(probe, 3)),
  ]
}

export function nameOfCase({ probe, kind, hit, variant }: Case): string {
  return `${probe}${variant === undefined ? '' : ` (${variant})`} x ${kind}${hit > 1 ? `, hit ${hit}` : ''}`
}

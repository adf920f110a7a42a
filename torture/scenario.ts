// What a capability brings to the rig: its processes, its traffic, where its faults strike, its planted bugs, and how a run is judged. The
// rig does the rest, and is the same for all.

import type { ProbeName } from 'pawl/testing'
import type { Canary } from './canary.ts'
import type { FaultKind, PlannedFault } from './faults.ts'
import type { Entry } from './history.ts'
import type { Plan } from './plan.ts'
import type { Rig } from './rig.ts'

export interface Scenario {
  /** The capability's name, as its folder has it. */
  readonly name: string
  /** What is added to the torture database, and to no other: ledgers that enforce nothing, and triggers that record every change. */
  readonly audit: URL
  /** What its processes run, by role; each has a `worker`. */
  readonly programs: Readonly<Record<string, URL>>
  readonly aims: Aims
  readonly canaries: readonly Canary[]
  readonly stories: readonly Story[]
  readonly matrix: Matrix
  openTraffic(rig: Rig, plan: Plan): Promise<Traffic>
  /** Whether everything that was asked for has come to its end. */
  isAtRest(rig: Rig): Promise<boolean>
  /** Whether others have everything that this process held. */
  isTakenOver(rig: Rig, pid: number): Promise<boolean>
  /** Whether a storm has shown what it is there for, and may end. Without it: whether any write was refused. */
  hasShown?(rig: Rig): Promise<boolean>
  judge(rig: Rig, end: RunEnd): Promise<Judged>
}

/** Where the faults of a storm strike. */
export interface Aims {
  /** The processes of a storm. */
  readonly slots: readonly string[]
  readonly probes: Readonly<Partial<Record<FaultKind, readonly ProbeName[]>>>
  /** The hits that a fault waits for are drawn from 1 to this. */
  hitsMax(probe: ProbeName): number
  /** Faults of slots that are not processes: a thread of one, or the rig's own traffic. */
  more(seed: number, seconds: number): Record<string, readonly PlannedFault[]>
}

/** What users and operators do during a storm. */
export interface Traffic {
  start(): Promise<void>
  stop(): Promise<void>
  close(): Promise<void>
}

/** A small story with one fault, told step by step. A storm comes across such moments by chance; here they happen for certain. */
export interface Story {
  readonly name: string
  readonly tells: string
  play(rig: Rig): Promise<void>
}

export interface RunEnd {
  readonly isDrained: boolean
  /** Processes that did not stop in order after healing. */
  readonly notStopped: readonly string[]
}

export interface Violation<Check extends string = string> {
  readonly check: Check
  readonly message: string
}

export interface Judged {
  readonly entries: readonly Entry[]
  /** What was asked for, and every change that followed. */
  readonly operations: number
  /** How much each check looked at. */
  readonly checks: Readonly<Record<string, number>>
  readonly violations: readonly Violation[]
  /** A run proves something only if each of these happened: take-overs, refused writes. */
  readonly shown: Readonly<Record<string, number>>
  readonly more: Readonly<Record<string, number | string>>
}

/** Every probe times everything that can go wrong there. */
export interface Matrix {
  readonly cases: readonly Case[]
  open(rig: Rig, seed: number): Promise<MatrixStage>
}

export interface Case {
  readonly probe: ProbeName
  readonly kind: FaultKind
  /** Which hit of the probe meets the fault. */
  readonly hit: number
  /** What has to happen around a process before it comes to the probe. */
  readonly provocation: string
  /** Tells cases apart that share a probe and a kind. */
  readonly variant?: string
}

export interface MatrixStage {
  play(each: Case, index: number): Promise<CaseEnd>
  close(): Promise<void>
}

export interface CaseEnd {
  /** Whether the fault happened. */
  readonly isReached: boolean
  readonly isAtRest: boolean
  /** Whether the process that met the fault stopped in order afterwards. */
  readonly isOrderly: boolean
}

export function nameOfCase({ probe, kind, hit, variant }: Case): string {
  return `${probe}${variant === undefined ? '' : ` (${variant})`} x ${kind}${hit > 1 ? `, hit ${hit}` : ''}`
}

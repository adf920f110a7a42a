// Makes a failing plan small: which of its faults are enough? The faults are taken away by halves, then by quarters and so on (delta
// debugging); a storm does not replay exactly, so each candidate is played a few times, and the result says how often it fails.

import type { PlannedFault } from './faults.ts'
import type { Plan } from './plan.ts'

interface Placed {
  readonly slot: string
  readonly fault: PlannedFault
}

/** Plays a plan once and names the checks that found something. */
export type Play = (plan: Plan) => Promise<readonly string[]>

export interface MinimiseOptions {
  readonly play: Play
  /** How often a candidate is played before it counts as harmless. */
  readonly tries: number
  /** How often the result is played, to say how likely it fails. */
  readonly finalTries: number
  readonly say: (line: string) => void
}

export interface Minimised {
  readonly plan: Plan
  /** What must be found again for a candidate to count. */
  readonly checks: readonly string[]
  readonly before: number
  readonly after: number
  /** Of `finalTries`. */
  readonly failed: number
  readonly plays: number
}

/** Undefined: the plan itself did not fail, so there is nothing to make small. */
export async function minimise(plan: Plan, options: MinimiseOptions): Promise<Minimised | undefined> {
  const { tries, finalTries, say } = options
  let plays = 0
  const play: Play = (candidate) => {
    plays++
    return options.play(candidate)
  }
  const all = placed(plan)
  let checks: readonly string[] = []
  for (let tried = 0; tried < tries && checks.length === 0; tried++) checks = await play(plan)
  if (checks.length === 0) return undefined
  say(`${all.length} faults; found by: ${checks.join(', ')}`)

  const isSame = (found: readonly string[]) => found.some((check) => checks.includes(check))
  const fails = async (faults: readonly Placed[]) => {
    for (let tried = 1; tried <= tries; tried++) {
      const isFailing = isSame(await play(withFaults(plan, faults)))
      if (isFailing) say(`${faults.length} faults: it fails, at try ${tried}`)
      if (isFailing) return true
    }
    say(`${faults.length} faults: not in ${tries} tries`)
    return false
  }
  const least = await ddmin(all, fails)
  const result = withFaults(plan, least)
  let failed = 0
  for (let tried = 0; tried < finalTries; tried++) if (isSame(await play(result))) failed++
  return { plan: result, checks, before: all.length, after: least.length, failed, plays }
}

/**
 * Zeller's ddmin: a list that fails, and of which no single part can be left out. A part alone is tried first, then everything but a
 * part, then smaller parts. Whether it needs any fault at all is asked at the start.
 */
export async function ddmin<T>(list: readonly T[], fails: (list: readonly T[]) => Promise<boolean>): Promise<readonly T[]> {
  if (list.length === 0 || (await fails([]))) return []
  let left = list
  let parts = 2
  while (left.length > 1) {
    const pieces = split(left, parts)
    const alone = await firstThat(pieces, fails)
    if (alone !== undefined) {
      left = alone
      parts = 2
      continue
    }
    // With two parts, what is left without one is the other.
    const rest = pieces.map((piece) => left.filter((item) => !piece.includes(item)))
    const smaller = parts === 2 ? undefined : await firstThat(rest, fails)
    if (smaller !== undefined) {
      left = smaller
      parts = Math.max(parts - 1, 2)
    } else if (parts < left.length) parts = Math.min(parts * 2, left.length)
    else break
  }
  return left
}

async function firstThat<T>(lists: readonly T[], fails: (list: T) => Promise<boolean>): Promise<T | undefined> {
  for (const list of lists) if (await fails(list)) return list
  return undefined
}

function split<T>(list: readonly T[], parts: number): T[][] {
  const size = list.length / parts
  return Array.from({ length: parts }, (_, index) => list.slice(Math.round(index * size), Math.round((index + 1) * size)))
}

function placed(plan: Plan): Placed[] {
  return Object.entries(plan.faults).flatMap(([slot, faults]) => faults.map((fault) => ({ slot, fault })))
}

function withFaults(plan: Plan, list: readonly Placed[]): Plan {
  const faults: Record<string, PlannedFault[]> = Object.fromEntries(plan.workers.map((slot) => [slot, []]))
  for (const { slot, fault } of list) faults[slot] = [...(faults[slot] ?? []), fault]
  return { ...plan, faults }
}

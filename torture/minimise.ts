// Makes a failing plan small. Faults are left out by halves, then by quarters and so on (delta debugging); a storm does not replay exactly,
// so each candidate is played a few times, and the result says how often it fails.

import type { Plan, PlannedFault } from './plan.ts'

type Placed = { readonly slot: string; readonly fault: PlannedFault }

export interface MinimiseOptions {
  /** Plays a plan once and names the checks that found something. */
  readonly play: (plan: Plan) => Promise<readonly string[]>
  /** How often a candidate is played before it counts as harmless. */
  readonly tries: number
  /** How often the result is played, to say how likely it fails. */
  readonly finalTries: number
  readonly say: (line: string) => void
}

/** Undefined: the plan itself did not fail, so there is nothing to make small. */
export async function minimise(plan: Plan, { play, tries, finalTries, say }: MinimiseOptions) {
  const all = Object.entries(plan.faults).flatMap(([slot, faults]) => faults.map((fault) => ({ slot, fault })))
  let plays = 0
  let checks: readonly string[] = []
  while (plays < tries && checks.length === 0) {
    plays++
    checks = await play(plan)
  }
  if (checks.length === 0) return undefined
  say(`${all.length} faults; found by: ${checks.join(', ')}`)

  const failsOnce = async (candidate: Plan) => {
    plays++
    return (await play(candidate)).some((check) => checks.includes(check))
  }
  const fails = async (faults: readonly Placed[]) => {
    for (let tried = 1; tried <= tries; tried++) {
      if (!(await failsOnce(withFaults(plan, faults)))) continue
      say(`${faults.length} faults: it fails, at try ${tried}`)
      return true
    }
    say(`${faults.length} faults: not in ${tries} tries`)
    return false
  }
  const least = await ddmin(all, fails)
  const result = withFaults(plan, least)
  let failed = 0
  for (let tried = 0; tried < finalTries; tried++) if (await failsOnce(result)) failed++
  // `checks` found something in the whole plan; the result fails in `failed` of `finalTries` plays.
  return { plan: result, checks, before: all.length, after: least.length, failed, plays }
}

/**
 * Zeller's ddmin: a list that fails, and of which no single part can be left out. A part alone is tried first, then everything but a
 * part, then smaller parts. The first candidate is the empty list.
 */
export async function ddmin<T>(list: readonly T[], fails: (list: readonly T[]) => Promise<boolean>): Promise<readonly T[]> {
  const firstThatFails = async (lists: readonly T[][]) => {
    for (const each of lists) if (await fails(each)) return each
    return undefined
  }
  if (list.length === 0 || (await fails([]))) return []
  let left = list
  let parts = 2
  while (left.length > 1) {
    const size = left.length / parts
    const pieces = Array.from({ length: parts }, (_, n) => left.slice(Math.round(n * size), Math.round((n + 1) * size)))
    const alone = await firstThatFails(pieces)
    // With two parts, what is left without one is the other.
    const rest = pieces.map((piece) => left.filter((item) => !piece.includes(item)))
    const smaller = alone ?? (parts === 2 ? undefined : await firstThatFails(rest))
    if (smaller !== undefined) {
      left = smaller
      parts = alone === undefined ? Math.max(parts - 1, 2) : 2
    } else if (parts < left.length) parts = Math.min(parts * 2, left.length)
    else break
  }
  return left
}

function withFaults(plan: Plan, list: readonly Placed[]): Plan {
  const faults: Record<string, PlannedFault[]> = Object.fromEntries(plan.workers.map((slot) => [slot, []]))
  for (const { slot, fault } of list) faults[slot] = [...(faults[slot] ?? []), fault]
  return { ...plan, faults }
}

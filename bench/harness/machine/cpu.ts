// CPU by /proc: what the processes of a sample used, and how much of the machine others used meanwhile. A ratio taken in a noisy moment is worth less.

import { readdirSync, readFileSync } from 'node:fs'

/** Linux counts for programs in hundredths of a second, whatever its kernel's own clock. */
const microsPerTick = 10_000

export interface Reading {
  readonly busy: number
  readonly total: number
  readonly own: number
}

/** Undefined where there is no /proc. Processes count as ours if they descend from one of the roots; those that ended count through their parent. */
export function readCpu(roots: readonly number[]): Reading | undefined {
  try {
    const fields = readFileSync('/proc/stat', 'utf8').split('\n')[0]!.trim().split(/\s+/).slice(1, 9).map(Number)
    const total = fields.reduce((sum, ticks) => sum + ticks, 0)
    return { busy: total - fields[3]! - fields[4]!, total, own: ownTicks(roots) }
  } catch {
    return undefined
  }
}

/** The share of the whole machine that went to foreign processes, 0 to 100. */
export function foreignShare(from: Reading | undefined, to: Reading | undefined): number | undefined {
  if (from === undefined || to === undefined || to.total === from.total) return undefined
  const foreign = to.busy - from.busy - (to.own - from.own)
  return Math.max(0, (100 * foreign) / (to.total - from.total))
}

/** Of processes and their descendants, in microseconds; 0 where there is no /proc. */
export function cpuMicros(roots: readonly number[]): number {
  try {
    return ownTicks(roots) * microsPerTick
  } catch {
    return 0
  }
}

function ownTicks(roots: readonly number[]): number {
  const parents = new Map<number, number>()
  const ticks = new Map<number, number>()
  for (const entry of readdirSync('/proc')) {
    if (!/^\d+$/.test(entry)) continue
    const fields = statOf(entry)
    if (fields === undefined) continue
    parents.set(Number(entry), Number(fields[1]))
    ticks.set(
      Number(entry),
      fields.slice(11, 15).reduce((sum, field) => sum + Number(field), 0),
    )
  }
  let own = 0
  for (const [pid, used] of ticks) if (descends(pid, parents, roots)) own += used
  return own
}

/** The fields after the command's name, which may itself hold spaces and brackets. */
function statOf(pid: string): string[] | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return text.slice(text.lastIndexOf(')') + 2).split(' ')
  } catch {
    return undefined
  }
}

function descends(pid: number, parents: ReadonlyMap<number, number>, roots: readonly number[]): boolean {
  for (let at: number | undefined = pid; at !== undefined && at > 1; at = parents.get(at)) if (roots.includes(at)) return true
  return false
}

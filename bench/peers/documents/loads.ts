// Child inserts while their parent is renamed, the same for every system.

import { now, pause } from '../../harness/machine/clock.ts'
import { percentile } from '../../harness/report/stats.ts'

/** A parent with children, and each of these with some of its own. */
export interface Shape {
  readonly sessions: number
  readonly offerings: number
}

/** A transaction of a rename stays open for openMs, and the next one begins pauseMs later. */
export const renamesPer = { openMs: 100, pauseMs: 100 } as const

const lanes = 4

export interface Inserts {
  readonly p50: number
  readonly p99: number
  readonly inserted: number
  readonly refused: number
  readonly renames: number
}

interface Load {
  /** False: refused, since the parent has another key by now. */
  insert(n: number): Promise<boolean>
  rename(): Promise<void>
}

/** Times every call, also of those that are refused. */
export async function insertWhile(durationMs: number, { insert, rename }: Load): Promise<Inserts> {
  const taken: number[] = []
  const counted = { inserted: 0, refused: 0, renames: 0 }
  let n = 0
  // The first calls of each connection plan.
  for (; n < 100; n += lanes) await Promise.all(Array.from({ length: lanes }, (_, lane) => insert(n + lane)))
  const until = now() + durationMs
  const lane = async () => {
    while (now() < until) {
      const from = now()
      const isInserted = await insert(n++)
      taken.push(now() - from)
      counted[isInserted ? 'inserted' : 'refused'] += 1
    }
  }
  const renamer = async () => {
    while (now() < until) {
      await rename()
      counted.renames += 1
      await pause(renamesPer.pauseMs)
    }
  }
  await Promise.all([renamer(), ...Array.from({ length: lanes }, lane)])
  return { p50: percentile(taken, 50), p99: percentile(taken, 99), ...counted }
}

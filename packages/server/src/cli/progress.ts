// Progress of something long: a bar that is redrawn on a terminal, and a line for each tenth elsewhere.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Terminal } from './terminal.ts'

export interface Progress {
  /** The step that it is at. */
  readonly step: string
  readonly ended: number
  readonly total: number
  /** Shown after the numbers. */
  readonly more?: string
}

const width = 30

export function bar({ ended, total }: Pick<Progress, 'ended' | 'total'>): string {
  const filled = Math.floor(width * part(ended, total))
  return `[${'#'.repeat(filled)}${'-'.repeat(width - filled)}] ${ended} of ${total}`
}

function part(ended: number, total: number): number {
  return total === 0 ? 1 : ended / total
}

/** Reads until there is no progress to show. Reading takes at most 1/10 of the time: counts of a large batch are expensive. */
export async function watched<T>(
  terminal: Terminal,
  read: () => Promise<T>,
  progressOf: (value: T) => Progress | undefined,
): Promise<T> {
  let said: string | undefined
  for (;;) {
    const from = performance.now()
    const value = await read()
    const tookMs = performance.now() - from
    const progress = progressOf(value)
    if (progress === undefined) {
      terminal.status('')
      return value
    }
    const line = `${progress.step}  ${bar(progress)}${progress.more ?? ''}`
    const tenth = `${progress.step} ${Math.floor(10 * part(progress.ended, progress.total))}`
    if (terminal.hasStatus) terminal.status(line)
    else if (tenth !== said) terminal.say(line)
    said = tenth
    await sleep(Math.max(250, 10 * tookMs))
  }
}

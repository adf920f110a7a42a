// SIGTERM and SIGINT ask a command to stop; a second one ends the wait for running jobs. A closed output asks it to stop as well.

import { exitCodes } from '../failure.ts'

/** Ctrl-C in a terminal reaches a process more than once when npm and a shell pass it on as well. */
const sameMs = 1000

export type StopReason = 'signal' | 'output closed'

export function exitOf(reason: StopReason): number {
  return reason === 'signal' ? exitCodes.ok : exitCodes.failed
}

export interface StopRequests {
  /** Resolves at the first signal, or when the output is closed. */
  readonly asked: Promise<StopReason>
  /** Resolves at the second signal. */
  readonly insisted: Promise<void>
  /** Leaves the signals to Node again. */
  forget(): void
}

let onOutputClosed: (() => void) | undefined

/** Asks the command that runs to stop; false when it ends by itself and has nothing to stop. */
export function outputClosed(): boolean {
  onOutputClosed?.()
  return onOutputClosed !== undefined
}

export function stopRequests(): StopRequests {
  let ask!: (reason: StopReason) => void
  let insist!: () => void
  const asked = new Promise<StopReason>((resolve) => {
    ask = resolve
  })
  const insisted = new Promise<void>((resolve) => {
    insist = resolve
  })
  onOutputClosed = () => ask('output closed')
  let firstMs: number | undefined
  const heard = (): void => {
    const nowMs = performance.now()
    firstMs ??= nowMs
    if (firstMs === nowMs) ask('signal')
    else if (nowMs - firstMs > sameMs) insist()
  }
  const signals = ['SIGINT', 'SIGTERM'] as const
  for (const signal of signals) process.on(signal, heard)
  return {
    asked,
    insisted,
    forget: () => {
      for (const signal of signals) process.off(signal, heard)
    },
  }
}

// SIGTERM and SIGINT ask a command to stop; a second one says that it must not wait any longer.

/** Ctrl-C in a terminal reaches a process more than once when npm and a shell pass it on as well. */
const sameMs = 1000

export interface StopRequests {
  /** Resolves at the first signal. */
  readonly asked: Promise<NodeJS.Signals>
  /** Resolves at the second. */
  readonly insisted: Promise<NodeJS.Signals>
  /** Leaves the signals to Node again. */
  forget(): void
}

export function stopRequests(): StopRequests {
  let ask!: (signal: NodeJS.Signals) => void
  let insist!: (signal: NodeJS.Signals) => void
  const asked = new Promise<NodeJS.Signals>((resolve) => {
    ask = resolve
  })
  const insisted = new Promise<NodeJS.Signals>((resolve) => {
    insist = resolve
  })
  let firstMs: number | undefined
  const heard = (signal: NodeJS.Signals): void => {
    const nowMs = performance.now()
    firstMs ??= nowMs
    if (firstMs === nowMs) ask(signal)
    else if (nowMs - firstMs > sameMs) insist(signal)
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

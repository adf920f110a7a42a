/** Milliseconds of the machine's monotonic clock. Every process on the machine reads the same one, so times of two processes compare. */
export function now(): number {
  return Number(process.hrtime.bigint()) / 1e6
}

export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}

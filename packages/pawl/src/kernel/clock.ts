// The process's monotonic clock. It measures how long something took here; when something is due is decided by the database alone.

export function monotonicMs(): number {
  return performance.now()
}

/** The same clock in every thread of the process, in nanoseconds. */
export function threadClockNs(): bigint {
  return process.hrtime.bigint()
}

const units: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }

/** Milliseconds from a number or from '250ms', '5s', '15m', '2h', '7d'. */
export function durationMs(value: number | string): number {
  if (typeof value === 'number') return value
  const match = /^(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)$/.exec(value.trim())
  if (match === null)
    throw new RangeError(`'${value}' is not a duration. Use a number of milliseconds or one of 250ms, 5s, 15m, 2h, 7d.`)
  return Number(match[1]) * units[match[2]!]!
}

/** Nothing is put off for longer than ten years; a number beyond that is a mistake, and PostgreSQL's own time ends somewhere. */
export const delayMsMax = 10 * 365 * 86_400_000

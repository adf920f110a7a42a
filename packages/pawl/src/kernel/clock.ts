// The process's monotonic clock. It measures how long something took here; when something is due is decided by the database alone.

import { PawlError, shown } from '../errors.ts'

export function monotonicMs(): number {
  return performance.now()
}

/** The same clock in every thread of the process, in nanoseconds. */
export function threadClockNs(): bigint {
  return process.hrtime.bigint()
}

const units: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }

const pattern = /^(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)$/

export function isDuration(value: unknown): value is number | string {
  return typeof value === 'number'
    ? value >= 0 && value < Number.POSITIVE_INFINITY
    : typeof value === 'string' && pattern.test(value.trim())
}

/** Milliseconds from a number or from '250ms', '5s', '15m', '2h', '7d'. */
export function durationMs(value: number | string): number {
  if (!isDuration(value))
    throw new PawlError(
      'PAWL_CONFIG',
      `A duration must be a number of milliseconds or a string such as '250ms', '5s', '15m', '2h', '7d', got ${shown(value)}.`,
    )
  if (typeof value === 'number') return value
  const [, amount, unit] = pattern.exec(value.trim())!
  return Number(amount) * units[unit!]!
}

/** The shortest string that means these milliseconds. */
export function durationText(ms: number): string {
  const unit = Object.keys(units).findLast((each) => ms % units[each]! === 0 && ms > 0) ?? 'ms'
  return `${ms / units[unit]!}${unit}`
}

/** Nothing is put off for longer than ten years; a number beyond that is a mistake, and PostgreSQL's own time ends somewhere. */
export const delayMsMax = 10 * 365 * 86_400_000

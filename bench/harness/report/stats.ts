export function median(values: readonly number[]): number {
  return percentile(values, 50)
}

/** The nearest rank between its neighbours: the median of two is their mean. */
export function percentile(values: readonly number[], percent: number): number {
  if (values.length === 0) throw new Error('There is no percentile of no values.')
  const sorted = [...values].sort((a, b) => a - b)
  const rank = (percent / 100) * (sorted.length - 1)
  const below = sorted[Math.floor(rank)]!
  const above = sorted[Math.ceil(rank)]!
  return below + (above - below) * (rank - Math.floor(rank))
}

/** Four digits carry all that such measurements know. */
export function rounded(value: number): number {
  return value === 0 ? 0 : Number(value.toPrecision(4))
}

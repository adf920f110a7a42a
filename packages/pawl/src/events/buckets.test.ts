import { expect, test } from 'vitest'
import { bucketRange, buckets } from './read-log.ts'

test.each([1, 2, 3, 7, 16, 1000, 1024])('the buckets of %i shards are all there, each once', (of) => {
  const ranges = Array.from({ length: of }, (_, index) => bucketRange({ index, of }))
  expect(ranges[0]!.from).toBe(0)
  expect(ranges.at(-1)!.to).toBe(buckets - 1)
  for (const [index, { from, to }] of ranges.entries()) {
    expect(to).toBeGreaterThanOrEqual(from)
    if (index > 0) expect(from).toBe(ranges[index - 1]!.to + 1)
  }
})

import { expect, test } from 'vitest'
import { byBytes } from './settle.ts'

const megabytes = (sizes: readonly number[], countMax = 1000) =>
  [...byBytes(sizes, countMax, (size) => size * 1_048_576)].map((batch) => batch.join(' '))

test('[J32] a settle takes at most 16 MB of results, at least one', () => {
  expect(megabytes([6, 6, 6, 6, 1])).toEqual(['6 6', '6 6 1'])
  expect(megabytes([8, 8, 1])).toEqual(['8 8', '1'])
  expect(megabytes([20, 1, 20])).toEqual(['20', '1', '20'])
  expect(megabytes([0, 0, 0, 0, 0], 2)).toEqual(['0 0', '0 0', '0'])
  expect(megabytes([])).toEqual([])
})

import { expect, test } from 'vitest'
import { describeError } from './errors.ts'

test('a thrown object is described by what is in it', () => {
  expect(describeError({ status: 500 })).toBe('a thrown object: {"status":500}')
  const cycle: { self?: unknown } = {}
  cycle.self = cycle
  expect(describeError(cycle)).toBe('a thrown object that cannot be converted to a string')
  expect(describeError('plain')).toBe('plain')
})

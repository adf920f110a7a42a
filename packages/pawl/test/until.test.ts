import { expect, test } from 'vitest'
import { until } from './support/database.ts'

test('a wait in vain fails with what it last saw', async () => {
  await expect(until('it is there', () => undefined, 0)).rejects.toThrow('in vain until it is there; last seen: undefined')
  await expect(
    until(
      'two are parked',
      async () => [{ key: 'a' }],
      (parked) => parked.length === 2,
      0,
    ),
  ).rejects.toThrow("in vain until two are parked; last seen: [ { key: 'a' } ]")
})

test('a wait ends with what it saw', async () => {
  let looks = 0
  expect(await until('it is there', () => (++looks < 3 ? false : looks))).toBe(3)
  expect(
    await until(
      'it is four',
      () => looks++,
      (seen) => seen === 4,
    ),
  ).toBe(4)
})

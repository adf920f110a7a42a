import { expect, test } from 'vitest'
import type { Statement } from '../db/statement.ts'
import { Ends } from './ends.ts'
import type { Registry } from './sets.ts'

test('[R15] one statement polls for all waiters, and none without waiters', async () => {
  let [polls, inFlight, most] = [0, 0, 0]
  const ended = new Set<string>()
  const run = async (_statement: Statement, values: Record<'ids', string>) => {
    polls++
    most = Math.max(most, ++inFlight)
    await new Promise((resolve) => setTimeout(resolve, 5))
    inFlight--
    const ids = values.ids.slice(1, -1).split(',')
    return ids.flatMap((id, index) => (ended.has(id) ? [{ ordinal: index + 1 }] : []))
  }
  const registry = { pool: { run } } as unknown as Registry
  const ends = new Ends()
  const waits = Array.from({ length: 1000 }, (_, n) => ends.wait(registry, '', String(n % 10), 60_000, undefined))
  for (let n = 0; n < 10; n++) {
    ended.add(String(n))
    ends.wake()
  }
  await Promise.all(waits)
  expect(most).toBe(1)
  expect(polls).toBeLessThan(20)
  const before = polls
  await new Promise((resolve) => setTimeout(resolve, 150))
  expect(polls).toBe(before)
})

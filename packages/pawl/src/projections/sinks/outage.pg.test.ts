import { expect, test, vi } from 'vitest'
import { until } from '../../../test/support/database.ts'
import { append, createLog, startRunner } from '../../../test/support/projections.ts'

const minutes = 60_000
/** How long a test waits for a millisecond of the outage. */
const scale = 1 / 20_000

const clock = vi.hoisted(() => ({ waitedMs: new Map<string, number>(), key: '' }))

// Each key waits as long as the sink's own policy says, on a clock of its own that runs faster.
vi.mock('../definition.ts', async (original) => {
  const real = await original<typeof import('../definition.ts')>()
  return {
    ...real,
    retryDelayMs: (...given: Parameters<typeof real.retryDelayMs>) => {
      const delayMs = real.retryDelayMs(...given)
      const { key } = given[2] as { key: string }
      clock.waitedMs.set(key, (clock.waitedMs.get(key) ?? 0) + (delayMs ?? 0))
      return delayMs === undefined ? undefined : Math.max(1, delayMs * scale)
    },
  }
})

test('after five minutes of outage a sink with defaults drains in order', async () => {
  const db = await createLog()
  const pawl = db.pawl()
  const got: Record<string, number[]> = {}
  const attempts: number[] = []
  pawl.projections.sink('out', {
    handle: ({ key, data }, { attempt }) => {
      if ((clock.waitedMs.get(key) ?? 0) < 5 * minutes) throw Object.assign(new Error('away'), { key })
      attempts.push(attempt)
      got[key] = [...(got[key] ?? []), data as number]
    },
  })
  await startRunner(pawl)
  const keys = Array.from({ length: 40 }, (_, n) => `k${n}`)
  for (const n of [1, 2, 3]) await append(db, ...keys.map((key) => ({ key, data: n })))
  await until('all is handed over', () => attempts.length === 3 * keys.length, 30_000)
  for (const key of keys) expect(got[key]).toEqual([1, 2, 3])
  expect((await pawl.projections.parked('out')).items).toEqual([])
  // Those that were tried all the time have attempts left.
  expect(Math.max(...attempts)).toBeGreaterThan(5)
  expect(Math.max(...attempts)).toBeLessThan(40)
})

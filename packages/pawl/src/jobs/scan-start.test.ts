import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { ScanStart } from './watch.ts'

let nowMs = 0
beforeEach(() => {
  nowMs = 1_000_000
  vi.spyOn(performance, 'now').mockImplementation(() => nowMs)
})
afterEach(() => {
  vi.restoreAllMocks()
})

/** Gives where the scan started. */
async function scan(start: ScanStart, tookMs: number, reached: string): Promise<string> {
  let from = ''
  const work = async (after: string) => {
    from = after
    nowMs += tookMs
    return { reached }
  }
  await start.scan(work, 10_000)
  return from
}

test('quick scans start at the beginning, also after a slow one', async () => {
  const start = new ScanStart()
  for (const tookMs of [1, 20, 1, 20, 1]) expect(await scan(start, tookMs, 'a')).toBe('-infinity')
})

test('after two slow scans, the next start mid-way until a full one', async () => {
  const start = new ScanStart()
  expect(await scan(start, 20, 'a')).toBe('-infinity')
  expect(await scan(start, 20, 'b')).toBe('-infinity')
  expect(await scan(start, 20, 'c')).toBe('b')
  expect(await scan(start, 1, 'd')).toBe('c')
  nowMs += 10_000
  expect(await scan(start, 1, 'e')).toBe('-infinity')
  // That one was quick: what was in front is gone.
  expect(await scan(start, 1, 'f')).toBe('-infinity')
})

test('a scan without an answer moves nothing', async () => {
  const start = new ScanStart()
  await scan(start, 20, 'a')
  await scan(start, 20, 'b')
  await start.scan(async () => ({ reached: null }), 10_000)
  expect(await scan(start, 1, 'c')).toBe('b')
})

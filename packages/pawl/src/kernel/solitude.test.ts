import { expect, test } from 'vitest'
import { deferred } from '../../test/support/database.ts'
import { Solitude } from './handler.ts'

test('an ask waits for what is inside, and keeps the rest out', async () => {
  const solitude = new Solitude()
  const go = deferred<string>()
  const told: string[] = []
  solitude.onOpened(() => told.push('opened'))
  const inside = solitude.run(() => go.promise)
  const ask = solitude.ask(() => told.push('granted'))
  expect(solitude.isGranted(ask)).toBe(false)
  expect(ask.hasKeptOut).toBe(false)
  expect(await solitude.run(() => Promise.resolve('late'))).toBeUndefined()
  expect(ask.hasKeptOut).toBe(true)
  go.resolve('done')
  expect(await inside).toBe('done')
  expect(solitude.isGranted(ask)).toBe(true)
  expect(told).toEqual(['granted'])
  expect(solitude.isClosed()).toBe(true)
  solitude.end(ask)
  expect(told).toEqual(['granted', 'opened'])
  expect(await solitude.run(() => Promise.resolve('next'))).toBe('next')
})

test('asks are granted in order, and one that ended is passed over', () => {
  const solitude = new Solitude()
  const told: string[] = []
  solitude.onOpened(() => told.push('opened'))
  const [first, second, third] = ['first', 'second', 'third'].map((name) => solitude.ask(() => told.push(name)))
  const granted = () => [first, second, third].map((ask) => solitude.isGranted(ask!))
  expect(granted()).toEqual([true, false, false])
  solitude.end(second!)
  expect(granted()).toEqual([true, false, false])
  solitude.end(first!)
  expect(granted()).toEqual([false, false, true])
  solitude.end(third!)
  expect(told).toEqual(['first', 'third', 'opened'])
})

test('work inside that fails leaves, and so does one inside another', async () => {
  const solitude = new Solitude()
  const ends: (() => void)[] = []
  const work = solitude.run(async () => {
    ends.push(solitude.enter())
    throw new Error('no')
  })
  await expect(work).rejects.toThrow('no')
  const ask = solitude.ask(() => undefined)
  expect(solitude.isGranted(ask)).toBe(false)
  ends[0]!()
  expect(solitude.isGranted(ask)).toBe(true)
  expect(solitude.isBusy).toBe(false)
})

import { expect, test } from 'vitest'
import { Passwords } from './keeper.ts'

test('askers at once share one question, and each later one asks anew', async () => {
  let asked = 0
  const passwords = new Passwords(() => asked++, 60_000)
  const first = [passwords.ask(), passwords.ask()]
  expect(asked).toBe(1)
  passwords.told({ password: 'a', reason: '' })
  expect(await Promise.all(first)).toEqual(['a', 'a'])
  const next = passwords.ask()
  expect(asked).toBe(2)
  passwords.told({ password: 'b', reason: '' })
  expect(await next).toBe('b')
})

test('without an answer, or with a failure, the last password has to do', async () => {
  const passwords = new Passwords(() => undefined, 1)
  await expect(passwords.ask()).rejects.toMatchObject({ code: 'PAWL_UNAVAILABLE', message: expect.stringContaining('in time') })
  // It comes too late for who asked, and in time for the next one.
  passwords.told({ password: 'a', reason: '' })
  expect(await passwords.ask()).toBe('a')
  const failed = passwords.ask()
  passwords.told({ password: null, reason: 'no token' })
  expect(await failed).toBe('a')
})

test('a failure of the first question is told with its reason', async () => {
  const passwords = new Passwords(() => undefined, 60_000)
  const failed = passwords.ask()
  passwords.told({ password: null, reason: 'no token' })
  await expect(failed).rejects.toMatchObject({ code: 'PAWL_UNAVAILABLE', message: 'no token' })
})

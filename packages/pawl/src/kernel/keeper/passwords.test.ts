import { expect, test } from 'vitest'
import { Passwords } from './passwords.ts'

test('concurrent askers share one question; a later one asks again', async () => {
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

test('without an answer, or after a failure, the last password is used', async () => {
  const passwords = new Passwords(() => undefined, 1)
  await expect(passwords.ask()).rejects.toMatchObject({ code: 'PAWL_UNAVAILABLE', message: expect.stringContaining('in time') })
  // The answer comes too late for this question, and in time for the next.
  passwords.told({ password: 'a', reason: '' })
  expect(await passwords.ask()).toBe('a')
  const failed = passwords.ask()
  passwords.told({ password: null, reason: 'no token' })
  expect(await failed).toBe('a')
})

test('a first question that fails rejects with its reason', async () => {
  const passwords = new Passwords(() => undefined, 60_000)
  const failed = passwords.ask()
  passwords.told({ password: null, reason: 'no token' })
  await expect(failed).rejects.toMatchObject({ code: 'PAWL_UNAVAILABLE', message: 'no token' })
})

import { expect, test } from 'vitest'
import { deferred } from '../../test/support/database.ts'
import { Service } from './service.ts'

const hourMs = 3_600_000

function watched() {
  const told: string[] = []
  const loop = { succeeded: () => void told.push('succeeded'), failed: (error: unknown) => void told.push(String(error)) }
  return { told, loop }
}

test('a service woken during a round runs another right after', async () => {
  const stop = new AbortController()
  let rounds = 0
  const twice = deferred()
  const round = async () => {
    if (++rounds === 1) service.wake()
    else twice.resolve()
    return hourMs
  }
  const service: Service = new Service({ round, signal: stop.signal, loop: watched().loop })
  const ended = service.run()
  await twice.promise
  stop.abort()
  await ended
  expect(rounds).toBe(2)
})

test('after an error the round runs again, after its backoff', async () => {
  const stop = new AbortController()
  const { told, loop } = watched()
  let rounds = 0
  const round = async () => {
    if (++rounds < 3) throw new Error(`round ${rounds}`)
    stop.abort()
    return hourMs
  }
  const failures: number[] = []
  const backoffMs = (_error: unknown, failed: number) => failures.push(failed) && 1
  await new Service({ round, signal: stop.signal, loop, backoffMs }).run()
  expect(told).toEqual(['Error: round 1', 'Error: round 2', 'succeeded'])
  expect(failures).toEqual([1, 2])
})

test('runOnce runs after the round in progress and rejects with its error', async () => {
  const stop = new AbortController()
  const go = deferred()
  const told: string[] = []
  let rounds = 0
  const round = async () => {
    const n = ++rounds
    told.push(`${n} begins`)
    if (n === 1) await go.promise
    told.push(`${n} ends`)
    if (n === 2) throw new Error('no')
    return hourMs
  }
  const service = new Service({ round, signal: stop.signal, loop: watched().loop })
  const ended = service.run()
  const once = service.runOnce()
  go.resolve()
  await expect(once).rejects.toThrow('no')
  expect(told).toEqual(['1 begins', '1 ends', '2 begins', '2 ends'])
  stop.abort()
  await ended
})

import { expect, test } from 'vitest'
import { defineKind } from './kinds.ts'
import { resolveWorkerOptions } from './worker-options.ts'

const run = () => undefined
const kinds = new Map([
  ['mail', defineKind('mail', { run })],
  ['resize', defineKind('resize', { run, queue: 'images' })],
])

test('a worker works the queues of its kinds, or those that are named, each once', () => {
  expect(resolveWorkerOptions({}, kinds).queues).toEqual(['default', 'images'])
  expect(resolveWorkerOptions({ queues: ['images', 'images'] }, kinds).queues).toEqual(['images'])
})

test('queues that no job can be in are refused', () => {
  expect(() => resolveWorkerOptions({ queues: [] }, kinds)).toThrow(/queues must not be empty.*leave queues out/)
  expect(() => resolveWorkerOptions({ queues: ['default', ''] }, kinds)).toThrow(/1 to 100 characters/)
  expect(() => resolveWorkerOptions({ queues: 'a' as never }, kinds)).toThrow(/worker: queues must be an array, got 'a'/)
  expect(() => defineKind('long', { run, queue: 'q'.repeat(101) })).toThrow(/queue must be a string of 1 to 100 characters/)
})

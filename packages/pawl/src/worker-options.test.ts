import { expect, test } from 'vitest'
import { defineKind } from './jobs/kinds.ts'
import { defineSink } from './projections/definition.ts'
import { resolveWorkerOptions } from './worker-options.ts'

const run = () => undefined
const runnable = {
  kinds: [defineKind('mail', { run }), defineKind('resize', { run, queue: 'images' })],
  projections: [defineSink('', 'sales', { handle: run }), defineSink('', 'stock', { handle: run })],
}

test('a worker polls the queues of its kinds, or those named, once', () => {
  expect(resolveWorkerOptions({}, runnable).queues).toEqual(['default', 'images'])
  expect(resolveWorkerOptions({ queues: ['images', 'images'] }, runnable).queues).toEqual(['images'])
})

test('a worker runs all projections of its process, or those named', () => {
  const namesOf = (options: object) => resolveWorkerOptions(options, runnable).projections.map(({ name }) => name)
  expect(namesOf({})).toEqual(['sales', 'stock'])
  expect(namesOf({ projections: ['stock'] })).toEqual(['stock'])
  expect(namesOf({ projections: [] })).toEqual([])
  expect(namesOf({ deciding: 'only' })).toEqual([])
})

test('queues that no job can be in are refused', () => {
  expect(() => resolveWorkerOptions({ queues: ['default', ''] }, runnable)).toThrow(/1 to 100 characters/)
  expect(() => resolveWorkerOptions({ queues: 'a' as never }, runnable)).toThrow(/worker: queues must be an array, got 'a'/)
  expect(() => defineKind('long', { run, queue: 'q'.repeat(101) })).toThrow(/queue must be a string of 1 to 100 characters/)
})

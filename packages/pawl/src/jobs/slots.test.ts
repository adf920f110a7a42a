// What this process gives back because it cannot start it.

import { expect, test } from 'vitest'
import { ClaimedRow, HeldJob } from './held.ts'
import { Board } from './keeper.ts'
import { defineKind } from './kinds.ts'
import { Slots } from './slots.ts'

test('a suspect that cannot start is given back like any other', () => {
  const released: string[] = []
  const slots = new Slots({
    concurrency: 1,
    txMax: 1,
    bufferMs: 10_000,
    board: new Board(10),
    mayStart: () => true,
    run: () => new Promise(() => undefined),
    runShared: () => new Promise(() => undefined),
    onStart: () => undefined,
    onEnd: () => undefined,
    onTimeout: () => undefined,
    onRelease: ({ id }) => void released.push(id),
    onChange: () => undefined,
  })
  const kind = defineKind('work', { run: () => undefined })
  const jobs = ['1', '2'].map((id) => {
    const row = { tenant: '', id, fence: '1', kind: 'work', payload: '{}', payload_version: 1, attempt: 2, max_attempts: 5 }
    const held = new HeldJob(new ClaimedRow({ ...row, crashes: 1, headers: null, due_us: '0' }, 'default'), kind, 'test', 1)
    held.isSuspect = true
    held.isUnshared = true
    return held
  })
  slots.addFirst(jobs)
  slots.tick(performance.now())
  expect(released).toEqual(['2'])
})

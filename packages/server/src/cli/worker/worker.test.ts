// The exit code of `pawl worker`: what became of its jobs.

import type { StopReport } from 'pawl'
import { expect, test } from 'vitest'
import { exitAfter } from './worker.ts'

const all: StopReport = { finished: 2, released: 1, stillRunning: [], unsettled: [], aborted: [] }
const late: StopReport = { ...all, stillRunning: ['1'] }
const lost: StopReport = { ...all, unsettled: ['2'] }

test.each([
  ['all finished', 0, all, false],
  ['all finished after a second signal', 0, all, true],
  ['the grace was over', 7, late, false],
  ['a second signal gave jobs up', 130, late, true],
  ['ends were not stored', 5, lost, false],
  ['ends were not stored and the grace was over', 7, { ...late, ...lost, stillRunning: ['1'] }, false],
])('%s: exit %i', (_what, code, report, isInsisted) => {
  expect(exitAfter(report, { reason: 'signal', isInsisted })).toBe(code)
})

test('nobody reads the output and all finished: exit 1', () => {
  expect(exitAfter(all, { reason: 'output closed', isInsisted: false })).toBe(1)
})

import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { boardLines, type countRuns, recordRun, writeBoard } from './board.ts'
import type { Report } from './report.ts'

const report = (seed: number, more: Partial<Report> = {}): Report => ({
  torture: 'jobs',
  seed,
  seconds: 30,
  processes: 3,
  operations: 1000,
  faults: { kill: 2, pause: 1 },
  checks: { 'nothing lost': 10 },
  vacuous: false,
  violations: [],
  ...more,
})

test('the board counts every run once, by scenario and release', () => {
  const folder = mkdtempSync(join(tmpdir(), 'pawl-board-'))
  try {
    expect(boardLines(writeBoard(folder))).toHaveLength(1)
    recordRun(report(1), '0.1.0', folder)
    recordRun(report(1), '0.1.0', folder)
    recordRun(report(2, { violations: [{ check: 'applied once', message: 'twice' }] }), '0.1.0', folder)
    recordRun(report(3, { torture: 'outbox', vacuous: true }), '0.1.0', folder)
    recordRun(report(4), '0.2.0', folder)
    const { board } = JSON.parse(readFileSync(join(folder, 'board.json'), 'utf8')) as { board: ReturnType<typeof countRuns> }
    expect(board.map(({ torture, release, runs, seeds }) => ({ torture, release, runs, seeds }))).toEqual([
      { torture: 'jobs', release: '0.1.0', runs: 3, seeds: 2 },
      { torture: 'outbox', release: '0.1.0', runs: 1, seeds: 1 },
      { torture: 'jobs', release: '0.2.0', runs: 1, seeds: 1 },
    ])
    expect(board[0]).toMatchObject({
      seconds: 90,
      operations: 3000,
      faults: { kill: 6, pause: 3 },
      violations: 1,
      violatingSeeds: [2],
      vacuous: 0,
    })
    expect(board[1]!.vacuous).toBe(1)
    expect(boardLines(board).join('\n')).toContain('1 violation(s), with seed 2')
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
})

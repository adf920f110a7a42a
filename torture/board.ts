// The seed board: how much was played since which release, and what it found. Each storm appends one line, which no two runs can take from
// each other; the board is counted from the lines.

import { appendFileSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Report } from './report.ts'

export const tortureFolder = join(dirname(dirname(fileURLToPath(import.meta.url))), '.pawl', 'torture')

export interface Run {
  readonly torture: string
  readonly release: string
  readonly at: string
  readonly seed: number
  readonly seconds: number
  readonly operations: number
  readonly faults: Readonly<Record<string, number>>
  readonly isVacuous: boolean
  /** How many, by check. */
  readonly violations: Readonly<Record<string, number>>
}

export interface Row {
  readonly torture: string
  /** The release under which these were played. */
  readonly release: string
  readonly since: string
  readonly runs: number
  /** Different ones. */
  readonly seeds: number
  readonly seconds: number
  readonly operations: number
  readonly faults: Readonly<Record<string, number>>
  readonly vacuous: number
  readonly violations: number
  /** Which seeds had any. */
  readonly violatingSeeds: readonly number[]
}

/** So many seeds are named; the rest is in the lines. */
const seedsNamed = 20

export function recordRun(report: Report, release: string, folder: string = tortureFolder): void {
  const { torture, seed, seconds, operations, faults, vacuous } = report
  const violations: Record<string, number> = {}
  for (const { check } of report.violations) violations[check] = (violations[check] ?? 0) + 1
  const run: Run = {
    torture,
    release,
    at: new Date().toISOString(),
    seed,
    seconds,
    operations,
    faults,
    isVacuous: vacuous,
    violations,
  }
  mkdirSync(folder, { recursive: true })
  appendFileSync(join(folder, 'runs.ndjson'), `${JSON.stringify(run)}\n`)
  writeBoard(folder)
}

export function writeBoard(folder: string = tortureFolder): Row[] {
  const rows = countRuns(readRuns(folder))
  mkdirSync(folder, { recursive: true })
  const draft = join(folder, `board-${process.pid}.json`)
  writeFileSync(draft, `${JSON.stringify({ board: rows }, null, 2)}\n`)
  renameSync(draft, join(folder, 'board.json'))
  return rows
}

function readRuns(folder: string): Run[] {
  let text = ''
  try {
    text = readFileSync(join(folder, 'runs.ndjson'), 'utf8')
  } catch {
    // Nothing was played yet.
  }
  return text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Run)
}

/** One row for each scenario and release. */
export function countRuns(runs: readonly Run[]): Row[] {
  const groups = new Map<string, Run[]>()
  for (const run of runs) {
    const key = `${run.torture} ${run.release}`
    groups.set(key, [...(groups.get(key) ?? []), run])
  }
  return [...groups.values()].map((group) => {
    const sum = (of: (run: Run) => number) => group.reduce((total, run) => total + of(run), 0)
    const violationsOf = (run: Run) => Object.values(run.violations).reduce((total, count) => total + count, 0)
    const faults: Record<string, number> = {}
    for (const run of group) for (const [kind, count] of Object.entries(run.faults)) faults[kind] = (faults[kind] ?? 0) + count
    return {
      torture: group[0]!.torture,
      release: group[0]!.release,
      since: group[0]!.at,
      runs: group.length,
      seeds: new Set(group.map((run) => run.seed)).size,
      seconds: sum((run) => run.seconds),
      operations: sum((run) => run.operations),
      faults,
      vacuous: group.filter((run) => run.isVacuous).length,
      violations: sum(violationsOf),
      violatingSeeds: [...new Set(group.filter((run) => violationsOf(run) > 0).map((run) => run.seed))].slice(0, seedsNamed),
    }
  })
}

export function boardLines(rows: readonly Row[]): string[] {
  if (rows.length === 0) return ['No storm was played yet: npm run torture -- jobs --seed 1 --seconds 30']
  return rows.flatMap((row) => {
    const faults = Object.values(row.faults).reduce((total, count) => total + count, 0)
    const found =
      row.violations === 0 ? '0 violations' : `${row.violations} violation(s), with seed ${row.violatingSeeds.join(', ')}`
    return [
      `${row.torture}, release ${row.release}, since ${row.since.slice(0, 10)}: ${row.seeds} seeds in ${row.runs} runs of ${row.seconds} s together`,
      `  ${row.operations} operations, ${faults} faults, ${found}${row.vacuous > 0 ? `, ${row.vacuous} vacuous` : ''}`,
      `  ${Object.entries(row.faults)
        .map(([kind, count]) => `${kind} ${count}`)
        .join(', ')}`,
    ]
  })
}

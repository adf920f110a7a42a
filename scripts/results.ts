// The results of a test run, one JSON object a line, written at once: a run that is killed leaves those it had.

import { createHash } from 'node:crypto'
import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { root } from './phase.ts'

export type TestState = 'passed' | 'failed' | 'skipped'

export interface TestResult {
  readonly file: string
  readonly title: string
  readonly state: TestState
  readonly ms: number
}

export interface Counts {
  readonly passed: number
  readonly failed: number
  readonly skipped: number
}

export function sumCounts(all: readonly Counts[]): Counts {
  const sum = (of: (counts: Counts) => number): number => all.reduce((total, counts) => total + of(counts), 0)
  return { passed: sum(({ passed }) => passed), failed: sum(({ failed }) => failed), skipped: sum(({ skipped }) => skipped) }
}

export type ResultLine =
  | {
      readonly type: 'run'
      readonly startedAt: string
      readonly node: string
      readonly sources: string
      readonly isFull?: boolean
    }
  | ({ readonly type: 'test' } & TestResult)
  | { readonly type: 'end'; readonly unhandled: number }

export interface Results {
  readonly tests: readonly TestResult[]
  readonly startedAt: string | undefined
  /** The fingerprint of the sources that were tested. */
  readonly sources: string | undefined
  readonly unhandled: number
  /** Whether both tiers of tests were run whole. */
  readonly isFull: boolean
  /** Whether it came to its end. */
  readonly isWhole: boolean
}

export const resultsFile = join(root, '.pawl', 'test', 'results.jsonl')

export function readResults(file: string = resultsFile): Results {
  let text = ''
  try {
    text = readFileSync(file, 'utf8')
  } catch {
    // No run yet.
  }
  const lines = text.split('\n').flatMap(parseLine)
  const run = lines.find((line) => line.type === 'run')
  const end = lines.find((line) => line.type === 'end')
  return {
    tests: lines.filter((line) => line.type === 'test'),
    startedAt: run?.startedAt,
    sources: run?.sources,
    unhandled: end?.unhandled ?? 0,
    isFull: run?.isFull ?? false,
    isWhole: end !== undefined,
  }
}

/** Several runs as one, which `npm run acceptance` reads. */
export function writeResults(runs: readonly Results[], isFull: boolean): void {
  const lines: ResultLine[] = [
    {
      type: 'run',
      startedAt: runs[0]?.startedAt ?? '',
      node: process.versions.node,
      sources: fingerprint(),
      isFull,
    },
    ...runs.flatMap(({ tests }) => tests.map((test) => ({ type: 'test' as const, ...test }))),
  ]
  const isWhole = runs.every((run) => run.isWhole)
  if (isWhole) lines.push({ type: 'end', unhandled: runs.reduce((sum, run) => sum + run.unhandled, 0) })
  mkdirSync(dirname(resultsFile), { recursive: true })
  writeFileSync(resultsFile, `${lines.map((line) => JSON.stringify(line)).join('\n')}\n`)
}

/** The last line of a run that was killed may be cut off. */
function parseLine(text: string): ResultLine[] {
  try {
    return text.trim() === '' ? [] : [JSON.parse(text) as ResultLine]
  } catch {
    return []
  }
}

/** Errors outside of any test count as failed: a run with them is not a good one. */
export function countResults({ tests, unhandled }: Results): Counts {
  const count = (state: TestState): number => tests.filter((test) => test.state === state).length
  return { passed: count('passed'), failed: count('failed') + unhandled, skipped: count('skipped') }
}

const sources = ['package-lock.json', 'tsconfig.json', 'vitest.config.ts', 'packages', 'torture', 'scripts']

/** Changes whenever anything changes that a test could depend on, or that is in the files and folders given. */
export function fingerprint(paths: readonly string[] = sources): string {
  const hash = createHash('sha256')
  for (const file of paths.flatMap((path) => filesAt(join(root, path)))) {
    hash.update(relative(root, file)).update('\0').update(readFileSync(file)).update('\0')
  }
  return hash.digest('hex')
}

function filesAt(path: string): string[] {
  return statSync(path).isFile() ? [path] : [...filesUnder(path)]
}

export function* filesUnder(folder: string): Generator<string> {
  const entries = readdirSync(folder, { withFileTypes: true }).sort((a, b) => (a.name < b.name ? -1 : 1))
  for (const entry of entries) {
    const path = join(folder, entry.name)
    if (entry.isDirectory()) {
      if (entry.name !== 'node_modules' && entry.name !== 'dist' && !entry.name.startsWith('.')) yield* filesUnder(path)
    } else if (entry.isFile()) yield path
  }
}

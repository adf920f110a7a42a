// The promises in docs/guarantees.md and the tests that prove them. A test names the promises it proves in brackets: '[J4] a worker ...'.

import { readFileSync } from 'node:fs'
import { join, relative } from 'node:path'
import { root } from './phase.ts'
import { filesUnder, type TestResult } from './results.ts'
import { type Tier, tierOf } from './tests/tiers.ts'

export interface Guarantee {
  readonly id: string
  /** 'built': it must have a test. 'later': its capability is not there yet. */
  readonly state: 'built' | 'later'
  readonly text: string
}

export type Verdict = 'pass' | 'fail' | 'missing' | 'skipped'

export const guaranteesFile = join(root, 'docs', 'guarantees.md')

/** Rows of the tables: | K1 | built | Two claimers ... | */
export function readGuarantees(text: string = readFileSync(guaranteesFile, 'utf8')): Guarantee[] {
  return [...text.matchAll(/^\|\s*([A-Z]\d+)\s*\|\s*(built|later)\s*\|\s*(.+?)\s*\|$/gm)].map(([, id, state, promise]) => ({
    id: id!,
    state: state as Guarantee['state'],
    text: promise!,
  }))
}

export function idsIn(title: string): string[] {
  return [...title.matchAll(/\[([A-Z]\d+)\]/g)].map((match) => match[1]!)
}

const titlePattern = /\b(?:test|it|describe)(?:\.\w+(?:\([^()]*\))?)*\(\s*(['"`])((?:\\.|(?!\1)[^\\])*)\1/g

/** The ids that titles in the tree name, each with the files that do. */
export function idsInTree(): Map<string, Set<string>> {
  const found = new Map<string, Set<string>>()
  for (const folder of ['packages', 'torture', 'scripts']) {
    for (const file of filesUnder(join(root, folder))) {
      if (!file.endsWith('.test.ts')) continue
      for (const id of titlesIn(readFileSync(file, 'utf8')).flatMap(idsIn))
        found.set(id, (found.get(id) ?? new Set()).add(relative(root, file)))
    }
  }
  return found
}

export function titlesIn(source: string): string[] {
  return [...source.matchAll(titlePattern)].map((match) => match[2]!)
}

/** A promise with several tests is kept only if all of them pass; one that was skipped leaves it open. */
export function judge(guarantees: readonly Guarantee[], tests: readonly TestResult[]): Map<string, Verdict> {
  const states = new Map<string, TestResult['state'][]>()
  for (const test of tests) for (const id of idsIn(test.title)) states.set(id, [...(states.get(id) ?? []), test.state])
  return new Map(guarantees.map(({ id }) => [id, verdictOf(states.get(id) ?? [])]))
}

/** The tiers of the tests that name each promise. */
export function tiersById(tests: readonly TestResult[]): Map<string, Set<Tier>> {
  const tiers = new Map<string, Set<Tier>>()
  for (const { file, title } of tests)
    for (const id of idsIn(title)) tiers.set(id, (tiers.get(id) ?? new Set()).add(tierOf(file)))
  return tiers
}

function verdictOf(states: readonly TestResult['state'][]): Verdict {
  if (states.length === 0) return 'missing'
  if (states.includes('failed')) return 'fail'
  return states.includes('skipped') ? 'skipped' : 'pass'
}

/** A promise that is not built yet may be missing or skipped. One that is built must have been shown: what was skipped was not. */
export function isBroken({ state }: Guarantee, verdict: Verdict): boolean {
  return verdict === 'fail' || (state === 'built' && verdict !== 'pass')
}

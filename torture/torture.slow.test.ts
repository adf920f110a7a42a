// The rig as part of the tests: of each scenario one storm must be clean and worth something, and two planted bugs must be found. Which
// two, and which seed, follow from the commit, so that every commit tries others and one commit always tries the same. The smoke that
// `npm test` runs takes one scenario and one of its bugs.

import { execFile, execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { describe, expect, test } from 'vitest'
import type { Report } from './report.ts'
import { canariesOf, scenarios } from './scenarios.ts'

const root = dirname(dirname(fileURLToPath(import.meta.url)))

/** A number from the commit; from the date where there is no repository. */
function rotation(): number {
  let from = new Date().toISOString().slice(0, 10)
  try {
    from = execFileSync('git', ['rev-parse', 'HEAD'], { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim()
  } catch {}
  return createHash('sha256').update(from).digest().readUInt16LE()
}

interface Run {
  readonly code: number
  readonly report: Report
  readonly said: string
}

function torture(...args: string[]): Promise<Run> {
  return new Promise((resolve, reject) => {
    execFile(
      process.execPath,
      ['--import', 'tsx', '--conditions=@pawl/source', join(root, 'torture', 'main.ts'), ...args, '--json'],
      { cwd: root, maxBuffer: 1 << 26 },
      (error, stdout, stderr) => {
        const last = stdout.trim().split('\n').at(-1) ?? ''
        if (!last.startsWith('{')) reject(new Error(`The rig itself failed: ${stderr || String(error)}`))
        else
          resolve({
            code: typeof error?.code === 'number' ? error.code : error === null ? 0 : -1,
            report: JSON.parse(last) as Report,
            said: stderr,
          })
      },
    )
  })
}

const turn = rotation()
const seed = ['--seed', String(turn), '--seconds', '10']

const isSmoke = process.env.PAWL_SMOKE !== undefined
const played = isSmoke ? [scenarios[turn % scenarios.length]!] : scenarios

describe.each(played)('$name', ({ name: scenario, stories }) => {
  const canaries = canariesOf({ stories })
  const chosen = (isSmoke ? [0] : [0, 1]).map((offset) => canaries[(turn * 2 + offset) % canaries.length]!)

  test('a storm of ten seconds with every planned fault breaks no promise', {
    timeout: 240_000,
  }, async () => {
    const { code, report, said } = await torture(scenario, ...seed)
    expect(report.violations, said).toEqual([])
    expect(report.vacuous, `${said}${JSON.stringify(report.faults)}`).toBe(false)
    expect(code).toBe(0)
    expect(report).toMatchObject({ torture: scenario, seed: turn, seconds: 10 })
    expect(Object.keys(report)).toEqual([
      'torture',
      'seed',
      'seconds',
      'processes',
      'operations',
      'faults',
      'checks',
      'vacuous',
      'violations',
    ])
  })

  test.for(chosen)('the planted bug $name is found by its check', { timeout: 240_000 }, async ({ name, caughtBy }) => {
    const { code, report, said } = await torture('--canary', name, ...seed)
    expect(
      report.violations.map((violation) => violation.check),
      said,
    ).toContain(caughtBy)
    expect(code).toBe(1)
  })
})

import { readFileSync } from 'node:fs'
import { errorTable } from 'pawl/admin'
import { expect, test } from 'vitest'
import { exitCodes } from './failure.ts'
import { pawl as cli } from './test-support/cli.ts'

/** Nothing listens there: whatever connects does not get as far as what is expected here. */
const nowhere = 'postgres://pawl@127.0.0.1:1/x'

test('every command prints a runnable example before anything else', async () => {
  const commands = [
    [],
    ['dev'],
    ['worker'],
    ['migrate'],
    ['doctor'],
    ['version'],
    ['jobs'],
    ...['list', 'get', 'add', 'retry', 'cancel', 'why'].map((verb) => ['jobs', verb]),
  ]
  for (const command of commands) {
    const { code, stdout } = await cli([...command, '--help'])
    expect({ command, code }).toEqual({ command, code: 0 })
    expect(stdout).toMatch(new RegExp(`^Examples?:\\n +\\$ (.*\\| )?pawl ${command.join(' ')}`))
  }
})

test('help lists commands before the options that all of them have', async () => {
  for (const command of [[], ['jobs']]) {
    const { stdout } = await cli([...command, '--help'])
    const heads = [...stdout.matchAll(/^(\w[\w ]*):$/gm)].map(([, head]) => head)
    expect(heads.slice(0, 3)).toEqual(['Examples', 'Commands', 'Options'])
  }
})

test('--tenant is refused: a worker runs the jobs of every tenant', async () => {
  for (const command of ['worker', 'dev']) {
    const { code, stderr } = await cli([command, './jobs.js', '--tenant', 'acme', '--database-url', nowhere])
    expect({ command, code }).toEqual({ command, code: 2 })
    expect(stderr).toContain('runs the jobs of every tenant')
  }
})

test('[S6] the README has every exit code and no other', () => {
  const readme = readFileSync(new URL('../../README.md', import.meta.url), 'utf8')
  const documented = [...readme.matchAll(/^\| (\d+) +\|/gm)].map(([, code]) => Number(code))
  const used = new Set([...Object.values(exitCodes), ...Object.values(errorTable).map(({ exit }) => exit)])
  expect(documented).toEqual([...used].sort((a, b) => a - b))
})

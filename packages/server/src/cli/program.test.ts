import { readFileSync } from 'node:fs'
import { PawlError } from 'pawl'
import { errorTable } from 'pawl/admin'
import { expect, test } from 'vitest'
import { pageAnswer, pageFlags } from './answers.ts'
import { command, type Noun, oneOf } from './command.ts'
import { exitCodes } from './failure.ts'
import { commands } from './program.ts'
import { pawl as cli } from './test-support/cli.ts'

/** Nothing listens there: whatever connects does not get as far as what is expected here. */
const nowhere = 'postgres://pawl@127.0.0.1:1/x'

test('every command prints a runnable example before anything else', async () => {
  const paths = commands.flatMap((each) => [
    [each.name],
    ...('verbs' in each ? each.verbs.map((verb) => [each.name, verb.name]) : []),
  ])
  expect(paths).toContainEqual(['jobs', 'why'])
  for (const command of [[], ...paths]) {
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

/** What a new noun takes: a list, and an act on several ids. */
const shelves: Noun = {
  name: 'shelves',
  summary: 'List and empty shelves.',
  examples: ['pawl shelves list'],
  verbs: [
    command({
      name: 'list',
      summary: 'List shelves.',
      examples: ['pawl shelves list'],
      flags: { colour: oneOf('--colour <colour>', ['red', 'blue'], 'only this colour'), ...pageFlags },
      run: async ({ flags: { colour = 'any', limit, after = '0' } }) => {
        const items = [1, 2].map((n) => ({ id: String(Number(after) + n), colour })).slice(0, limit)
        return pageAnswer({ items, next: limit < 2 ? '1' : null }, [{ title: 'id', value: ({ id }) => id }], 'No shelves.')
      },
    }),
    command({
      name: 'empty',
      summary: 'Empty a shelf.',
      examples: ['pawl shelves empty 1'],
      args: [['<id>', 'the shelf']],
      run: async (_context, id: string) => {
        throw new PawlError('PAWL_NOT_FOUND', `There is no shelf ${id}.`)
      },
    }),
  ],
  next: { PAWL_NOT_FOUND: 'pawl shelves list' },
}

test("help, flags, pages, JSON and exit codes follow from a noun's table", async () => {
  const shelf = (...args: string[]) => cli(['shelves', ...args], { table: [shelves] })
  expect((await shelf('list', '--help')).stdout).toMatch(/^Example:[\s\S]*--colour <colour> +only this colour/)
  expect(await shelf('list')).toEqual({ code: 0, stdout: 'id\n1\n2\n', stderr: '' })
  const page = await shelf('list', '--limit', '1', '--colour', 'red', '-o', 'json')
  expect(JSON.parse(page.stdout)).toEqual({ items: [{ id: '1', colour: 'red' }], next: '1' })
  expect(page.stderr).toBe('There are more: --after 1\n')
  expect((await shelf('list', '--after', '1', '-o', 'jsonl')).stdout).toBe(
    '{"id":"2","colour":"any"}\n{"id":"3","colour":"any"}\n',
  )
  expect(await shelf('list', '--colour', 'green')).toMatchObject({ code: 2, stdout: '' })
  const missing = await shelf('empty', '7')
  expect(missing.code).toBe(3)
  expect(missing.stderr).toBe('error  There is no shelf 7.\nnext   pawl shelves list\ncode   PAWL_NOT_FOUND (exit 3)\n')
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

import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { root, summary } from './phase.ts'
import { runVitest } from './run-vitest.ts'

const files: Readonly<Record<string, string>> = {
  'vitest.config.mjs': "export default { test: { include: ['*.test.mjs'], exclude: [] } }",
  'mixed.test.mjs': `
    import { describe, expect, test, beforeAll } from 'vitest'
    test('good', () => {})
    test('bad', () => expect(1).toBe(2))
    test.skip('left out', () => {})
    test('leaves itself out', ({ skip }) => skip('no reason'))
    describe('suite', () => {
      beforeAll(() => { throw new Error('its hook fails') })
      test('never runs', () => {})
    })`,
  'broken.test.mjs': "import './not-there.mjs'",
  'late.test.mjs': `
    import { test } from 'vitest'
    test('good, but what it left behind throws', async () => {
      setTimeout(() => { throw new Error('unhandled') }, 1)
      await new Promise((resolve) => setTimeout(resolve, 50))
    })`,
}

async function project(names: readonly string[]): Promise<string> {
  const parent = join(root, '.pawl', 'test')
  await mkdir(parent, { recursive: true })
  const folder = await mkdtemp(join(parent, 'reporter-'))
  onTestFinished(() => rm(folder, { recursive: true, force: true }))
  for (const name of names) await writeFile(join(folder, name), files[name]!)
  return folder
}

async function runIn(folder: string) {
  const args = ['--root', folder, '--config', join(folder, 'vitest.config.mjs')]
  return runVitest({ args, isLive: false, file: join(folder, 'results.jsonl') })
}

test('failed tests, files that cannot be loaded, hooks that fail and errors outside of tests all count as failed', async () => {
  const { counts, results, ended } = await runIn(await project(Object.keys(files)))
  expect(ended.ok).toBe(false)
  expect(results.isWhole).toBe(true)
  const titles = (state: string) => results.tests.filter((one) => one.state === state).map(({ title }) => title)
  expect(titles('passed').sort()).toEqual(['good', 'good, but what it left behind throws'])
  expect(titles('failed').sort()).toEqual(['bad', 'suite', 'the file could not be run'])
  expect(titles('skipped').sort()).toEqual(['leaves itself out', 'left out', 'suite > never runs'])
  expect(results.unhandled).toBe(1)
  expect(summary(counts)).toBe('2 passed, 4 failed, 3 skipped')
})

test('a run without any test is a failure, not a success of nothing', async () => {
  const { counts } = await runIn(await project(['vitest.config.mjs']))
  expect(summary(counts)).toBe('0 passed, 1 failed')
})

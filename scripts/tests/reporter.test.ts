import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { root, summary } from '../phase.ts'
import { runVitest, runWithRetry } from './run-vitest.ts'

const files: Readonly<Record<string, string>> = {
  'vitest.config.mjs':
    "export default { test: { include: ['*.test.mjs'], exclude: [], pool: 'threads', isolate: false, maxWorkers: 1 } }",
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

test('failed tests, files, hooks and errors outside of tests count as failed', async () => {
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

test('a run without any test is a failure', async () => {
  const { counts } = await runIn(await project(['vitest.config.mjs']))
  expect(summary(counts)).toBe('0 passed, 1 failed')
})

/** Fails when it is run for the first time, and passes from then on. */
const failsOnce = (name: string): string => `
    import { existsSync, writeFileSync } from 'node:fs'
    import { expect, test } from 'vitest'
    const ran = new URL('./${name}.ran', import.meta.url)
    test('${name} fails once', () => {
      const isFirst = !existsSync(ran)
      writeFileSync(ran, '')
      expect(isFirst).toBe(false)
    })
    test('${name} is good', () => {})`

async function retryIn(folder: string) {
  const args = ['--root', folder, '--config', join(folder, 'vitest.config.mjs')]
  return runWithRetry({ args, alone: (path) => [...args, basename(path)], isLive: false, file: join(folder, 'results.jsonl') })
}

test('a file that passes only alone counts as passed and flaky', async () => {
  const folder = await project(['vitest.config.mjs'])
  await writeFile(join(folder, 'a.test.mjs'), failsOnce('a'))
  await writeFile(join(folder, 'b.test.mjs'), "import { test } from 'vitest'\ntest('b is good', () => {})")
  const { counts, flaky, ended } = await retryIn(folder)
  expect(summary(counts)).toBe('3 passed, 0 failed')
  expect(flaky.map(({ title }) => title)).toEqual(['a fails once'])
  expect(ended.ok).toBe(true)
})

test('a file that fails twice counts as failed and is not flaky', async () => {
  const { counts, flaky, ended } = await retryIn(await project(['vitest.config.mjs', 'mixed.test.mjs']))
  expect(summary(counts)).toBe('1 passed, 2 failed, 3 skipped')
  expect(flaky).toEqual([])
  expect(ended.ok).toBe(false)
})

test('more than three files that fail are not run again', async () => {
  const folder = await project(['vitest.config.mjs'])
  for (const name of ['a', 'b', 'c', 'd']) await writeFile(join(folder, `${name}.test.mjs`), failsOnce(name))
  const { counts, flaky } = await retryIn(folder)
  expect(summary(counts)).toBe('4 passed, 4 failed')
  expect(flaky).toEqual([])
})

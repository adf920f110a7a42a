import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Pawl } from 'pawl'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { UsageError } from '../failure.ts'
import { loadModules } from './user-modules.ts'

let dir: string
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'pawl-modules-'))
  await writeFile(
    join(dir, 'shared.cjs'),
    'const pawl = (name) => ({ name, worker() {}, migrate() {}, close() {} })\nmodule.exports = { a: pawl("a"), b: pawl("b") }',
  )
})
afterAll(() => rm(dir, { recursive: true, force: true }))

let count = 0
async function moduleOf(text: string, ext = 'mjs'): Promise<string> {
  const path = join(dir, `module-${++count}.${ext}`)
  await writeFile(
    path,
    ext === 'mjs' ? `import shared from './shared.cjs'\n${text}` : `const shared = require('./shared.cjs')\n${text}`,
  )
  return path
}

const theirs = async (...paths: string[]) => ((await loadModules(paths)).theirs as unknown as { name: string } | undefined)?.name

test.each([
  ['a named Pawl', 'export const pawl = shared.a; export const mail = { name: "mail" }', 'mjs'],
  ['a default Pawl', 'export default shared.a', 'mjs'],
  ['a Pawl beside functions', 'export const db = shared.a; export function one() {}; export function two() {}', 'mjs'],
  ['a Pawl by two names', 'export const pawl = shared.a; export default pawl', 'mjs'],
  ['a CommonJS module', 'module.exports = { pawl: shared.a, other() {} }', 'cjs'],
  ['a CommonJS module that is one', 'module.exports = shared.a', 'cjs'],
  ['a CommonJS module whose names no lexer sees', 'module.exports = Object.fromEntries([["pawl", shared.a]])', 'cjs'],
  ['a compiled ES module', 'Object.defineProperty(exports, "__esModule", { value: true }); exports.default = shared.a', 'cjs'],
])('of %s its Pawl is taken', async (_what, text, ext) => {
  expect(await theirs(await moduleOf(text, ext))).toBe('a')
})

test.each([
  ['a default function', 'export default (pawl) => globalThis.seen.push(pawl); export function other() {}', 'mjs'],
  ['a CommonJS module that is one', 'module.exports = (pawl) => globalThis.seen.push(pawl)', 'cjs'],
  [
    'a compiled ES module',
    'exports.__esModule = true; exports.default = (pawl) => globalThis.seen.push(pawl); exports.more = () => 1',
    'cjs',
  ],
])('of %s the function gets a Pawl of ours', async (_what, text, ext) => {
  const loaded = await loadModules([await moduleOf(text, ext)])
  expect(loaded.theirs).toBeUndefined()
  const seen: unknown[] = []
  Object.assign(globalThis, { seen })
  const ours = { name: 'ours' } as unknown as Pawl
  await loaded.define(ours)
  expect(seen).toEqual([ours])
})

test('modules share the one Pawl that some of them export', async () => {
  const paths = [
    await moduleOf('export default () => undefined'),
    await moduleOf('export const p = shared.b'),
    await moduleOf('export const q = shared.b'),
  ]
  expect(await theirs(...paths)).toBe('b')
})

test('what cannot be decided is refused with what to export', async () => {
  const [a, b] = [await moduleOf('export const p = shared.a'), await moduleOf('export const p = shared.b')]
  const both = await moduleOf('export const { a, b } = shared')
  const one = await moduleOf('export function dropEverything() { throw new Error("called") }')
  const two = await moduleOf('export function one() {}; export function two() {}')
  const none = await moduleOf('export const number = 1; export const tenant = { worker() {} }')
  const refused: [string[], RegExp][] = [
    [[a, b], /module-\d+\.mjs and .*module-\d+\.mjs export different Pawls\./],
    [[both], /exports 2 Pawls\./],
    [[one], /exports 1 function\(s\) and no default/],
    [[two], /exports 2 function\(s\) and no default, so it is not clear which jobs to run\./],
    [[none], /exports neither a Pawl nor a function/],
  ]
  for (const [paths, message] of refused) {
    const error: unknown = await loadModules(paths).catch((caught: unknown) => caught)
    expect(error).toBeInstanceOf(UsageError)
    expect((error as Error).message).toMatch(message)
  }
})

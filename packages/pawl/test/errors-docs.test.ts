import { readdirSync, readFileSync } from 'node:fs'
import { errorTable } from 'pawl/admin'
import { expect, test } from 'vitest'

const page = readFileSync(new URL('../../../docs/reference/errors.md', import.meta.url), 'utf8')
const sections = page.split(/^## /m).slice(1)
const codes = Object.keys(errorTable) as (keyof typeof errorTable)[]

test('docs/reference/errors.md lists exactly the codes of the table, in order', () => {
  expect(sections.map((section) => section.split('\n')[0])).toEqual([...codes].sort())
})

test.each(codes)('%s is documented with its numbers, cause and fix', (code) => {
  const section = sections.find((each) => each.startsWith(`${code}\n`))
  const { status, exit, retryable } = errorTable[code]
  expect(section).toContain(`\nstatus ${status}, exit ${exit}, ${retryable ? 'retryable' : 'not retryable'}\n`)
  for (const part of ['What', 'Why', 'What to do']) expect(section).toMatch(new RegExp(`^- \\*\\*${part}\\*\\*: \\S`, 'm'))
})

test('every code that the page mentions anywhere exists', () => {
  const mentioned = new Set(page.match(/PAWL_[A-Z_]+/g))
  expect([...mentioned].filter((code) => !(code in errorTable))).toEqual([])
})

test('every code is thrown somewhere in the library', () => {
  const folder = new URL('../src/', import.meta.url)
  const sources = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter(
    (file) => /(?<!\.test)\.ts$/.test(file) && file !== 'errors.ts',
  )
  const text = sources.map((file) => readFileSync(new URL(file, folder), 'utf8')).join('\n')
  expect(codes.filter((code) => !text.includes(`'${code}'`))).toEqual([])
})

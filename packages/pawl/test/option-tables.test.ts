import { readdirSync } from 'node:fs'
import { expect, test } from 'vitest'
import type { Table } from '../src/kernel/options.ts'

const source = new URL('../src/', import.meta.url)
const files = readdirSync(source, { recursive: true, encoding: 'utf8' }).filter(
  (file) => file.endsWith('.ts') && !/\.test\.ts$|keeper-thread|kernel.keep\.ts/.test(file),
)

/** Every exported table: `const ...Table`. */
async function tables(): Promise<[name: string, table: Table][]> {
  const modules = await Promise.all(
    files.map(async (file) => (await import(new URL(file, source).href)) as Record<string, unknown>),
  )
  const named = modules.flatMap((module) => Object.entries(module).filter(([name]) => /^(?!error).*Table$/.test(name)))
  return named.filter(([, value]) => typeof value === 'object') as [string, Table][]
}

test('[G2] every option says in one line what it does and what it must be', async () => {
  const found = await tables()
  expect(found.map(([name]) => name)).toEqual(
    expect.arrayContaining(['pawlTable', 'kindTable', 'workerTable', 'enqueueTable', 'uploadTable']),
  )
  for (const [name, table] of found) {
    for (const [option, { doc, expects }] of Object.entries(table)) {
      expect(doc, `${name}.${option}`).toMatch(/^\S.{3,118}[.?]$/)
      expect(expects, `${name}.${option}`).toMatch(/^\S.*[^.]$/)
    }
  }
})

// Imports point one way in SQL too: a folder's statements write only its own tables and read only those of folders to its left. What the
// right wants changed on the left, and what the left wants to know of the right, goes through a function.

import { readdirSync, readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { sourcesIn } from '../src/db/statement.ts'

const folders = ['kernel', 'jobs', 'events', 'projections', 'records', 'batches', 'documents'] as const
type Folder = (typeof folders)[number]

const migrations = new URL('../migrations/', import.meta.url)
const owners = new Map<string, Folder>()
for (const file of readdirSync(migrations)) {
  const folder = folders.find((name) => file.endsWith(`-${name}.sql`))!
  const text = readFileSync(new URL(file, migrations), 'utf8')
  for (const [, name] of text.matchAll(/^create (?:table|view) pawl\.(\w+)/gm)) owners.set(name!, folder)
}

/** Partitions belong where their table does. */
function ownerOf(table: string): Folder | undefined {
  return owners.get(table) ?? owners.get(table.replace(/_(first|last)$/, ''))
}

/** Of one statement: the tables that it writes, or reads, against the order of the folders. */
function crossings(folder: Folder, text: string): string[] {
  const bare = text.replace(/--.*$/gm, '')
  const found: string[] = []
  for (const [, verb, table] of bare.matchAll(
    /\b(insert into|update|delete from|truncate|(?:from|join|using)(?=\s+(?:only\s+)?pawl\.\w+\b(?!\s*\()))\s+(?:only\s+)?pawl\.(\w+)/g,
  )) {
    const owner = ownerOf(table!)
    const isWrite = !['from', 'join', 'using'].includes(verb!)
    if (owner === undefined) found.push(`${verb} ${table}, which no migration creates`)
    else if (isWrite ? owner !== folder : folders.indexOf(owner) > folders.indexOf(folder)) found.push(`${verb} ${table}`)
  }
  return [...new Set(found)]
}

test('the check finds writes to the left and reads from the right', () => {
  expect(crossings('jobs', 'update pawl.worker w set x = 1')).toEqual(['update worker'])
  expect(crossings('records', 'insert into pawl.event (id) select 1')).toEqual(['insert into event'])
  expect(crossings('events', 'select 1 from pawl.event e join pawl.cursor c on true')).toEqual(['join cursor'])
  expect(crossings('events', "select pawl.raise_alert('') from pawl.job j, pawl.live_workers() w")).toEqual([])
})

for (const folder of folders) {
  test(`statements of ${folder} write its tables and read no higher folder`, () => {
    const found: Record<string, string[]> = {}
    for (const [name, text] of sourcesIn(new URL(`../src/${folder}/sql/`, import.meta.url))) {
      const crossed = crossings(folder, text)
      if (crossed.length > 0) found[name] = crossed
    }
    expect(found).toEqual({})
  })
}

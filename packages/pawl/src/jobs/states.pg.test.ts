// The state machine as data has the states that the database enforces and the transitions that the README draws and the statements name.

import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { createDatabase } from '../../test/support/database.ts'
import { sourcesIn } from '../db/statement.ts'
import { finalStates, isFinal, openStates, transitions } from './states.ts'

const statements = sourcesIn(new URL('./sql/', import.meta.url))
const textOf = (statement: string) => statements.get(statement)!.replace(/^\s*--.*$/gm, '')

test('live and final states are exactly those that the CHECK constraints allow', async () => {
  const db = await createDatabase()
  try {
    const allowed = async (table: string, constraint: string) => {
      const [row] = await db.query<{ definition: string }>(
        'select pg_get_constraintdef(c.oid) as definition from pg_constraint c where c.conrelid = $1::regclass and c.conname = $2',
        [table, constraint],
      )
      return [...row!.definition.matchAll(/'([^']+)'/g)].map((match) => match[1])
    }
    expect((await allowed('pawl.job', 'state_known')).sort()).toEqual([...openStates].sort())
    expect((await allowed('pawl.job_history', 'outcome_known')).sort()).toEqual([...finalStates].sort())
  } finally {
    await db.drop()
  }
})

test('the diagram in the README has exactly these transitions', () => {
  const readme = readFileSync(new URL('./README.md', import.meta.url), 'utf8')
  const drawn = [...readme.matchAll(/^ {4}([a-z]+) --> ([a-z]+)/gm)].map(([, from, to]) => `${from} ${to}`)
  expect([...new Set(drawn)].sort()).toEqual([...new Set(transitions.map(({ from, to }) => `${from} ${to}`))].sort())
})

test('every statement that a transition names exists and names the state that it leads to', () => {
  for (const { statement, to } of transitions) {
    expect([...statements.keys()]).toContain(statement)
    expect(textOf(statement), `${statement} -> ${to}`).toContain(`'${to}'`)
  }
})

test('every statement of this folder that changes a state or ends a job is named by a transition', () => {
  const named = new Set(transitions.map(({ statement }) => statement))
  expect(statements.size).toBeGreaterThan(20)
  for (const statement of statements.keys()) {
    const text = textOf(statement)
    const changesState = /update pawl\.job j\s+set state =/.test(text) || /delete from pawl\.job j/.test(text)
    if (changesState) expect(named, statement).toContain(statement)
  }
})

test('no transition leaves a final state, each live state can be left, and each state can be reached from an enqueue', () => {
  for (const { from } of transitions) expect(isFinal(from)).toBe(false)
  for (const state of openStates) expect(transitions.some(({ from }) => from === state)).toBe(true)
  const reached = new Set(['scheduled', 'ready'])
  for (let size = 0; size !== reached.size; ) {
    size = reached.size
    for (const { from, to } of transitions) if (reached.has(from)) reached.add(to)
  }
  expect([...reached].sort()).toEqual([...openStates, ...finalStates].sort())
})

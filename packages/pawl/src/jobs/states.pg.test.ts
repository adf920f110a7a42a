// The state machine as data has the states that the database enforces and the transitions that the README draws and the statements name.

import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { createDatabase } from '../../test/support/database.ts'
import { sourcesIn } from '../db/statement.ts'
import { finalStates, isFinal, openStates } from './states.ts'
import type { JobState } from './types.ts'

interface Transition {
  readonly from: JobState
  readonly to: JobState
  readonly by: string
  readonly statement: string
}

const transitions: readonly Transition[] = [
  { from: 'scheduled', to: 'ready', by: 'its time has come', statement: 'promote' },
  { from: 'scheduled', to: 'ready', by: 'an operator', statement: 'retry' },
  { from: 'ready', to: 'running', by: 'a claim', statement: 'claim' },
  { from: 'ready', to: 'running', by: 'a claim of a suspect', statement: 'claim-suspect' },
  { from: 'running', to: 'done', by: 'its handler', statement: 'settle' },
  { from: 'running', to: 'scheduled', by: 'a failure or a snooze', statement: 'settle-failed' },
  { from: 'running', to: 'ready', by: 'a release', statement: 'settle-failed' },
  { from: 'running', to: 'dead', by: 'its last failure', statement: 'settle-failed' },
  { from: 'running', to: 'ready', by: 'a rescue', statement: 'rescue' },
  { from: 'running', to: 'dead', by: 'a rescue at its limit of crashes', statement: 'rescue' },
  { from: 'running', to: 'scheduled', by: 'its time limit', statement: 'time-out' },
  { from: 'running', to: 'dead', by: 'its time limit', statement: 'time-out' },
  { from: 'running', to: 'ready', by: 'a claim whose answer was lost', statement: 'release-unknown' },
  { from: 'dead', to: 'ready', by: 'an operator', statement: 'retry' },
  { from: 'scheduled', to: 'cancelled', by: 'an operator', statement: 'cancel' },
  { from: 'ready', to: 'cancelled', by: 'an operator', statement: 'cancel' },
  { from: 'running', to: 'cancelled', by: 'an operator', statement: 'cancel' },
  { from: 'dead', to: 'cancelled', by: 'an operator', statement: 'cancel' },
]

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

test('every statement named by a transition exists and names its target state', () => {
  for (const { statement, to } of transitions) {
    expect([...statements.keys()]).toContain(statement)
    expect(textOf(statement), `${statement} -> ${to}`).toContain(`'${to}'`)
  }
})

test('every statement that changes a state is named by a transition', () => {
  const named = new Set(transitions.map(({ statement }) => statement))
  expect(statements.size).toBeGreaterThan(20)
  for (const statement of statements.keys()) {
    const text = textOf(statement)
    const changesState = /update pawl\.job j\s+set state =/.test(text) || /delete from pawl\.job j/.test(text)
    if (changesState) expect(named, statement).toContain(statement)
  }
})

test('no transition leaves a final state; every state is reachable', () => {
  for (const { from } of transitions) expect(isFinal(from)).toBe(false)
  for (const state of openStates) expect(transitions.some(({ from }) => from === state)).toBe(true)
  const reached = new Set(['scheduled', 'ready'])
  for (let size = 0; size !== reached.size; ) {
    size = reached.size
    for (const { from, to } of transitions) if (reached.has(from)) reached.add(to)
  }
  expect([...reached].sort()).toEqual([...openStates, ...finalStates].sort())
})

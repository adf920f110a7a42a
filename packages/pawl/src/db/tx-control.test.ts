import { expect, test } from 'vitest'
import { endOf } from './calls.ts'

test.each([
  ['commit', 'commit'],
  ['  ROLLBACK;', 'ROLLBACK'],
  ['rollback work', 'rollback'],
  ['rollback and chain', 'rollback'],
  ['commit and chain', 'commit'],
  ['abort', 'abort'],
  ['end transaction', 'end'],
  ["prepare  transaction 'x'", 'prepare  transaction'],
  ['select 1; commit', 'commit'],
  ['begin; insert into a values (1); rollback', 'rollback'],
  ['-- a word\ncommit', 'commit'],
  ['/* a ; word */ commit', 'commit'],
  ["select 'it''s';rollback", 'rollback'],
  ["select E'it\\'s; ';commit", 'commit'],
  ['savepoint a; rollback to a; end', 'end'],
])('%j would end its transaction', (text, words) => {
  expect(endOf(text)).toBe(words)
})

test.each([
  'rollback to savepoint a',
  'rollback work to a',
  'ROLLBACK TRANSACTION TO SAVEPOINT "commit"',
  'release savepoint a',
  'savepoint a',
  'begin',
  "select 'a; commit'",
  "select E'\\'; commit'",
  'select ";commit"',
  'do $$ begin update a set b = 1; end $$',
  'do $body$ begin perform 1; commit; end $body$',
  '-- commit\nselect 1',
  'select 1 -- ; commit',
  '/* x; commit */ select 1',
  'select case\n when true then 1\nend',
  'insert into commit values (1); insert into end_of_day values ($1)',
  'prepare a as select 1',
  'create function f() returns void language sql begin atomic select 1; select 2; end',
  'select $1::text, $2::text',
])('%j leaves its transaction open', (text) => {
  expect(endOf(text)).toBeUndefined()
})

test('a long text is read once', () => {
  const startedMs = performance.now()
  expect(endOf(`select '${'a;\ncommit '.repeat(100_000)}'`)).toBeUndefined()
  expect(endOf(`${"select E'\\\\' || '$'; ".repeat(20_000)} commit`)).toBe('commit')
  expect(performance.now() - startedMs).toBeLessThan(2000)
})

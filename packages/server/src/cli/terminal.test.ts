import { Readable, Writable } from 'node:stream'
import { expect, test } from 'vitest'
import { Terminal } from './terminal.ts'

const text = 'Schema pawl belongs to one role, and a table in it to another: a migration of the first cannot change it.'

function printed(columns: number | undefined): string[] {
  let out = ''
  const stdout = new Writable({
    write: (chunk: Buffer, _encoding, done) => {
      out += chunk.toString()
      done()
    },
  })
  const streams = {
    stdin: Readable.from([]),
    stdout: Object.assign(stdout, { isTTY: columns !== undefined, columns }),
    stderr: stdout,
  }
  const terminal = new Terminal({ output: 'table', isQuiet: false, isVerbose: false, mayColour: false }, streams as never)
  terminal.pairs([
    ['error', text],
    ['id', '1'.repeat(60)],
  ])
  return out.trimEnd().split('\n')
}

test('on a terminal long values go on below themselves', () => {
  const lines = printed(40)
  expect(lines.filter((line) => line.length > 40)).toEqual([`id     ${'1'.repeat(60)}`])
  expect(lines.slice(1, -1).every((line) => line.startsWith(' '.repeat(7)) && line[7] !== ' ')).toBe(true)
  expect(
    lines
      .slice(0, -1)
      .map((line) => line.slice(7))
      .join(' '),
  ).toBe(text)
})

test('elsewhere a value is one line', () => {
  expect(printed(undefined)).toEqual([`error  ${text}`, `id     ${'1'.repeat(60)}`])
})

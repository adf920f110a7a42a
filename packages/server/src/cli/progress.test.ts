import { Readable, Writable } from 'node:stream'
import { expect, test } from 'vitest'
import { watched } from './progress.ts'
import { Terminal } from './terminal.ts'

async function shown(isTTY: boolean): Promise<string> {
  let out = ''
  const sink = new Writable({
    write: (chunk: Buffer, _encoding, done) => {
      out += chunk.toString()
      done()
    },
  })
  const stderr = Object.assign(sink, { isTTY, columns: 80 })
  const options = { output: 'table', isQuiet: false, isVerbose: false, mayColour: false } as const
  const terminal = new Terminal(options, { stdin: Readable.from([]), stdout: sink, stderr })
  const values = [10, 10, 19, 20]
  const left = await watched(
    terminal,
    async () => values.shift()!,
    (ended) => (ended === 20 ? undefined : { step: 'items', ended, total: 20, more: ', 1 failed' }),
  )
  expect(left).toBe(20)
  return out
}

test('on a terminal the bar is redrawn in place, and cleared', async () => {
  const half = `\r\u001b[Kitems  [${'#'.repeat(15)}${'-'.repeat(15)}] 10 of 20, 1 failed`
  expect(await shown(true)).toBe(`${half}${half}\r\u001b[Kitems  [${'#'.repeat(28)}--] 19 of 20, 1 failed\r\u001b[K`)
})

test('elsewhere each new tenth is a line', async () => {
  expect((await shown(false)).split('\n').map((line) => line.slice(-19))).toEqual([
    ' 10 of 20, 1 failed',
    ' 19 of 20, 1 failed',
    '',
  ])
})

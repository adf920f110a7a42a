// The resources of a workbook: the disk after a kill of the process, and memory while its rows are read.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { xlsx } from 'pawl/records/xlsx'
import { expect, onTestFinished, test } from 'vitest'
import { inline, sheetOf } from '../../../../test/support/xlsx.ts'

const root = fileURLToPath(new URL('../../../../../../', import.meta.url))

/** Reads a workbook that never ends, and says so after the first bytes are written. */
const reader = `
  import { xlsx } from 'pawl/records/xlsx'
  async function* chunks() {
    yield Buffer.alloc(1_000_000, 'a name and an address ')
    console.log('written')
    await new Promise((resolve) => setInterval(resolve, 2 ** 30))
  }
  const file = { chunks: chunks(), rowCharsMax: 1e6, types: new Set(), ignore() {} }
  for await (const _rows of xlsx().read(file));
`

test('[R13] kill -9 during an upload leaves no file on disk', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'pawl-test-'))
  onTestFinished(() => rm(folder, { recursive: true }))
  const args = ['--import', 'tsx', '--conditions=@pawl/source', '--input-type=module', '-e', reader]
  const child = spawn(process.execPath, args, {
    cwd: root,
    // What tsx keeps must not be in the folder.
    env: { ...process.env, TMPDIR: folder, TSX_DISABLE_CACHE: '1' },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  onTestFinished(() => void child.kill('SIGKILL'))
  const ended = once(child, 'exit')
  await Promise.race([once(child.stdout, 'data'), ended.then(([code]) => Promise.reject(new Error(`It ended with ${code}.`)))])
  const files = async () => (await readdir(folder)).filter((name) => name.endsWith('.xlsx'))
  expect(await files()).toEqual([])
  child.kill('SIGKILL')
  await ended
  expect(await files()).toEqual([])
})

const [strings, chars] = [60_000, 60]

/** Ten times as much XML as there is text, which does not pack too well. A function of its own, so that nothing of it stays on the stack. */
function bookOfStrings(): Buffer {
  const format = (n: number) => `<rPr><b/><color rgb="${String(n * 7919).padStart(10, '0')}"/>${'<i/>'.repeat(120)}</rPr>`
  const items = Array.from({ length: strings }, (_, n) => `<si><r>${format(n)}<t>${String(n).padEnd(chars, 'x')}</t></r></si>`)
  const rows = Array.from({ length: 600 }, (_, n) => `<row><c t="s"><v>${n}</v></c></row>`)
  return sheetOf(`<row>${inline('id')}</row>${rows.join('')}`, { 'xl/sharedStrings.xml': `<sst>${items.join('')}</sst>` })
}

test('[R13] shared strings hold their characters in memory and no XML', async () => {
  setFlagsFromString('--expose-gc')
  const gc = runInNewContext('gc') as () => void
  const book = bookOfStrings()
  async function* chunks() {
    yield book
  }
  const heap = async () => {
    await nextTurn()
    gc()
    return process.memoryUsage().heapUsed
  }
  const before = await heap()
  const file = {
    chunks: chunks(),
    rowCharsMax: 1_000_000,
    types: new Set<string>(),
    ignore: () => undefined,
    checkHeader: () => undefined,
  }
  const read = xlsx().read(file)[Symbol.asyncIterator]()
  expect((await read.next()).done).toBe(false)
  const grown = (await heap()) - before
  await read.return?.()
  expect(grown).toBeGreaterThan(strings * chars)
  expect(grown).toBeLessThan(4 * strings * chars)
})

// Records by the thousand: 15,000 and 100,000 rows of 30 fields, with the memory that they cost; and a stream that is too large.

import { execFile } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { expect, inject, onTestFinished, test } from 'vitest'
import type { UploadSaid, UploadSpec } from './processes/records-upload.ts'
import { createDatabase } from './support/database.ts'
import { defineLoads } from './support/records.ts'
import { workbook } from './support/xlsx.ts'

const root = fileURLToPath(new URL('../../../', import.meta.url))
const memoryMbMax = 200

async function uploadThere(spec: UploadSpec): Promise<UploadSaid> {
  const { stdout } = await promisify(execFile)(
    process.execPath,
    ['--expose-gc', inject('programs')['records-upload'], JSON.stringify(spec)],
    {
      cwd: root,
      maxBuffer: 10_000_000,
    },
  )
  return JSON.parse(stdout) as UploadSaid
}

const isRising = (numbers: readonly number[]) => numbers.every((each, index) => index === 0 || each >= numbers[index - 1]!)

test.each([15_000, 100_000])(
  `[R8] %i rows are all applied with exact progress below ${memoryMbMax} MB`,
  { timeout: 600_000 },
  async (rows) => {
    const db = await createDatabase()
    onTestFinished(() => db.drop())
    const first = await uploadThere({ url: db.url, rows })
    expect(first.submission).toMatchObject({
      state: 'submitted',
      counts: { rows, created: rows },
      progress: { rows, applied: rows, of: rows },
    })
    const again = await uploadThere({ url: db.url, rows, changeEvery: 5 })
    expect(again.submission).toMatchObject({
      state: 'submitted',
      counts: { rows, created: 0, updated: rows / 5, unchanged: rows - rows / 5 },
    })
    for (const { staged, applied, memoryMb } of [first, again]) {
      expect(isRising(staged)).toBe(true)
      expect(staged.at(-1)).toBe(rows)
      expect(isRising(applied)).toBe(true)
      // Nothing is shown that is not a whole number of chunks.
      expect(applied.slice(0, -1).filter((each) => each % 5000 !== 0)).toEqual([])
      expect(memoryMb).toBeLessThan(memoryMbMax)
    }
    expect(
      await db.query('select count(*)::int as n, count(distinct record_id)::int as records from pawl.record_version'),
    ).toEqual([{ n: rows + rows / 5, records: rows }])
    console.log(
      `${rows} rows: upload ${Math.round(first.uploadMs)} ms, apply ${Math.round(first.applyMs)} ms, ${Math.round(first.memoryMb)} MB; again ${Math.round(again.uploadMs)}, ${Math.round(again.applyMs)} ms, ${Math.round(again.memoryMb)} MB`,
    )
  },
)

test.each(['ndjson', 'json'] as const)(
  `[R8] 15,000 rows as %s equal their CSV, memory below ${memoryMbMax} MB`,
  { timeout: 300_000 },
  async (format) => {
    const rows = 15_000
    const db = await createDatabase()
    onTestFinished(() => db.drop())
    const said = await uploadThere({ url: db.url, rows, format })
    expect(said.submission).toMatchObject({ state: 'submitted', format, counts: { rows, created: rows } })
    expect(isRising(said.staged)).toBe(true)
    expect(said.staged.at(-1)).toBe(rows)
    expect(isRising(said.applied)).toBe(true)
    expect(said.memoryMb).toBeLessThan(memoryMbMax)
    const again = await uploadThere({ url: db.url, rows })
    expect(again.submission).toMatchObject({ state: 'submitted', counts: { created: 0, updated: 0, unchanged: rows } })
  },
)

test(`[R8] a workbook of 15,000 rows equals its CSV below ${memoryMbMax} MB`, {
  timeout: 300_000,
}, async () => {
  const rows = 15_000
  const db = await createDatabase()
  const folder = await mkdtemp(join(tmpdir(), 'pawl-test-'))
  onTestFinished(async () => {
    await rm(folder, { recursive: true })
    await db.drop()
  })
  const file = join(folder, 'loads.xlsx')
  const names = Array.from({ length: 29 }, (_, n) => `field${n}`)
  const cells = (row: number) => names.map((_, n) => (n % 3 === 0 ? row * 7 + n + 0.25 : `value ${n} of ${row} xxxxxxxx`))
  await writeFile(
    file,
    workbook([
      { name: 'load', rows: [['rowId', ...names], ...Array.from({ length: rows }, (_, row) => [`row-${row}`, ...cells(row)])] },
    ]),
  )
  const said = await uploadThere({ url: db.url, rows, workbook: file })
  expect(said.submission).toMatchObject({ state: 'submitted', format: 'xlsx', counts: { rows, created: rows } })
  expect(isRising(said.staged)).toBe(true)
  expect(said.staged.at(-1)).toBe(rows)
  expect(said.applied.slice(0, -1).filter((each) => each % 5000 !== 0)).toEqual([])
  expect(said.memoryMb).toBeLessThan(memoryMbMax)
  const again = await uploadThere({ url: db.url, rows })
  expect(again.submission).toMatchObject({ state: 'submitted', counts: { created: 0, updated: 0, unchanged: rows } })
  console.log(`${rows} rows as a workbook: upload ${Math.round(said.uploadMs)} ms, ${Math.round(said.memoryMb)} MB`)
})

test('[R10] a CSV stream of 2 GB is read up to its limit', {
  timeout: 300_000,
}, async () => {
  const db = await createDatabase()
  onTestFinished(() => db.drop())
  const pawl = db.pawl()
  const scope = pawl.records.in(defineLoads(pawl), { organisation: '1', registration: '1' })
  const line = Buffer.from(`row,not a number,${'x'.repeat(65_000)}\n`)
  let sentBytes = 0
  function* twoGigabytes(): Generator<Uint8Array> {
    yield Buffer.from('rowId,tonnes,note\n')
    for (; sentBytes < 2_147_483_648; sentBytes += line.length) yield line
  }
  const upload = await scope.upload(twoGigabytes(), { format: 'csv' })
  expect(upload).toMatchObject({ state: 'invalid', error: expect.stringMatching(/larger than 1073741824 bytes/) })
  expect(sentBytes).toBeLessThan(1_100_000_000)
  // Errors are bounded too, and all of them are counted.
  expect((await db.query<{ n: number }>('select count(*)::int as n from pawl.submission_error'))[0]!.n).toBeLessThanOrEqual(1001)
  expect(upload.counts.errors).toBeGreaterThan(10_000)
})

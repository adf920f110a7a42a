// CSV files for the processes under test, written once a run.

import { closeSync, mkdtempSync, openSync, rmSync, writeSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type Content, csvOf } from '../../peers/records/rows.ts'

let folder: string | undefined
const files = new Map<string, string>()

export function csvFile(content: Content): string {
  if (folder === undefined) {
    const made = mkdtempSync(join(tmpdir(), 'pawl-bench-records-'))
    process.once('exit', () => rmSync(made, { recursive: true, force: true }))
    folder = made
  }
  const name = `${content.rows}-${content.edition}-${content.changeEvery}.csv`
  let file = files.get(name)
  if (file === undefined) {
    file = join(folder, name)
    const open = openSync(file, 'w')
    for (const text of csvOf(content)) writeSync(open, text)
    closeSync(open)
    files.set(name, file)
  }
  return file
}

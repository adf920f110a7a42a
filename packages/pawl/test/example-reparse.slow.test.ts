// What is written is executed: the example runs as a reader of it would run it, and prints what its expected.txt says.

import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { expect, onTestFinished, test } from 'vitest'
import { createDatabase } from './support/database.ts'

const root = fileURLToPath(new URL('../../../', import.meta.url))

test('[B5] examples/reparse prints the output that its page shows', {
  timeout: 120_000,
}, async () => {
  const db = await createDatabase({ isEmpty: true })
  onTestFinished(() => db.drop())
  const { stdout } = await promisify(execFile)(
    process.execPath,
    ['--import', 'tsx', '--conditions=@pawl/source', 'examples/reparse/main.ts'],
    {
      cwd: root,
      env: { ...process.env, DATABASE_URL: db.url },
    },
  )
  expect(stdout).toBe(readFileSync(new URL('../../../examples/reparse/expected.txt', import.meta.url), 'utf8'))
})

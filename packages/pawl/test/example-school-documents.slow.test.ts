// What is written is executed: the example runs as a reader of it would run it, and prints what its expected.txt says.

import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { expect, onTestFinished, test } from 'vitest'
import { createDatabase } from './support/database.ts'

const root = fileURLToPath(new URL('../../../', import.meta.url))

test('[D5] examples/school-documents prints the output that its page shows', {
  timeout: 180_000,
}, async () => {
  const db = await createDatabase({ isEmpty: true })
  onTestFinished(() => db.drop())
  const { stdout } = await promisify(execFile)(
    process.execPath,
    ['--import', 'tsx', '--conditions=@pawl/source', 'examples/school-documents/main.ts'],
    {
      cwd: root,
      env: { ...process.env, DATABASE_URL: db.url },
    },
  )
  expect(stdout).toBe(readFileSync(new URL('../../../examples/school-documents/expected.txt', import.meta.url), 'utf8'))
})

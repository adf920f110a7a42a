#!/usr/bin/env node
// The pawl command. Data goes to stdout and everything else to stderr; the exit code says what happened (see README.md).

import { run } from './program.ts'

// A reader that has seen enough (`pawl jobs list | head -1`) closes the pipe; that is no fault.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE') process.exit(0)
  throw error
})

process.exitCode = await run(process.argv)

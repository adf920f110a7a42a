#!/usr/bin/env node
// The pawl command. Data goes to stdout and everything else to stderr; the exit code says what happened (see README.md).

import { run } from './program.ts'
import { outputClosed } from './worker/stop-signals.ts'

for (const stream of [process.stdout, process.stderr]) {
  stream.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error
    // A reader that has seen enough (`pawl jobs list | head -1`) closes the pipe; that is no fault. A command that runs jobs ends in order.
    if (!outputClosed() && stream === process.stdout) process.exit(0)
  })
}

// Not awaited at the top level: the published command is a CommonJS module.
void run(process.argv).then((code) => {
  process.exitCode = code
  // A pool or server that the user's modules left open must not keep a command that has ended.
  setTimeout(() => process.exit(), 1000).unref()
})

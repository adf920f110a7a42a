// What the engine has to say while a command runs workers, for a person. Failures of jobs are left out: they have lines of their own.

import type { Logger } from 'pawl'
import { clockTime, oneLine, type Terminal } from './terminal.ts'

const toldAsLines = new Set(['job is dead', 'job failed, will be retried'])

export function personLogger(terminal: Terminal): Logger {
  const log = (level: 'info' | 'warn' | 'error') => (fields: Readonly<Record<string, unknown>>, message: string) => {
    if (toldAsLines.has(message)) return
    const more = Object.entries(fields).map(
      ([name, value]) => `${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`,
    )
    const text = `${clockTime(new Date())}  ${level.padEnd(5)}  ${message}  ${oneLine(more.join(' '))}`.trimEnd()
    const painted = terminal.paint(text, level === 'error' ? 'red' : level === 'warn' ? 'yellow' : undefined, 'stderr')
    if (level === 'error') terminal.complain(painted)
    else terminal.say(painted)
  }
  return { debug() {}, info: log('info'), warn: log('warn'), error: log('error') }
}

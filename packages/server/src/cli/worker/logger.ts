// The engine's log lines for people while a command runs workers. Failures of jobs are left out: they have lines of their own.

import type { Logger } from 'pawl'
import { clockTime, oneLine, type Terminal } from '../terminal.ts'

export type LogFields = Parameters<Logger['info']>[0]

/** A failure of a job has a line of its own, made from the event of the same name. */
export function isJobLine({ event }: LogFields): boolean {
  return event === 'job.failed'
}

export function fieldsText({ event: _event, ...fields }: LogFields): string {
  const texts = Object.entries(fields).map(
    ([name, value]) => `${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`,
  )
  return texts.join(' ')
}

export function personLogger(terminal: Terminal): Logger {
  const log = (level: 'info' | 'warn' | 'error') => (fields: LogFields, message: string) => {
    if (isJobLine(fields)) return
    const text = `${clockTime(new Date())}  ${level.padEnd(5)}  ${message}  ${oneLine(fieldsText(fields))}`.trimEnd()
    const painted = terminal.paint(text, level === 'error' ? 'red' : level === 'warn' ? 'yellow' : undefined, 'stderr')
    if (level === 'error') terminal.complain(painted)
    else terminal.say(painted)
  }
  return { debug() {}, info: log('info'), warn: log('warn'), error: log('error') }
}

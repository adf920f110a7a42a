import { setTimeout as sleep } from 'node:timers/promises'
import { EmbeddedError } from '../errors.ts'
import { readPidFile } from './pidfile.ts'
import { type ProbeResult, type ProbeTarget, probe } from './probe.ts'

export interface AnswerTarget extends ProbeTarget {
  /** The postmaster that is to answer. */
  readonly pid: number
}

export type Answer = { readonly state: 'ours' } | { readonly state: 'gone' } | { readonly state: 'silent'; readonly why: string }

const pollMs = 25
/** Each probe of a busy server leaves a line in its log, so they become rarer. */
const maxBusyPollMs = 250
/** Replaying a long write-ahead log is not a fault: a server that says it is busy gets this long. */
const busyMs = 10 * 60_000

/** Probes until the server answers as ours, has gone, or has said nothing for `silenceMs`. */
export async function untilAnswer(target: AnswerTarget, silenceMs: number, isGone: () => Promise<boolean>): Promise<Answer> {
  const began = performance.now()
  let heardAt = began
  let pauseMs = pollMs
  for (;;) {
    if (await isGone()) return { state: 'gone' }
    const result = await ask(target)
    const now = performance.now()
    if (result.state === 'ours') return result
    if (result.state === 'busy') heardAt = now
    pauseMs = result.state === 'busy' ? Math.min(pauseMs * 2, maxBusyPollMs) : pollMs
    if (result.state === 'password refused' && !(await isGone())) throw passwordError(target, result.why)
    const why = result.state === 'other' ? 'a server with other data answers' : result.why
    if (now - heardAt > silenceMs || now - began > busyMs) return { state: 'silent', why }
    await sleep(pauseMs)
  }
}

/**
 * Probes once our postmaster says that the port is its own. Before it does, or once it gives the port up, a stranger may sit there, and
 * would be offered our password.
 */
async function ask(target: AnswerTarget): Promise<ProbeResult> {
  const file = await readPidFile(target.dataDir)
  const status = file?.pid === target.pid && file.port === target.port ? file.status : ''
  if (status === '') return { state: 'silent', why: 'it has not opened its port' }
  return status === 'stopping' ? { state: 'busy', why: 'it is stopping' } : probe(target)
}

function passwordError({ dataDir, port }: ProbeTarget, why: string): EmbeddedError {
  return new EmbeddedError(
    'password_refused',
    `The PostgreSQL of ${dataDir} on port ${port} does not accept the password in our password file (${why}). ` +
      'The file or the password of the role has changed. Restore the old file, or move the directory away to start with an empty database.',
  )
}

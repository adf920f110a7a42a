import { readFile } from 'node:fs/promises'
import { join } from 'node:path'

/** The postmaster's own data in postmaster.pid. */
export interface PidFile {
  readonly pid: number
  readonly port: number
  /** 'starting', 'ready', 'standby' or 'stopping'; empty until it has bound its port. */
  readonly status: string
  readonly text: string
}

export function pidFilePath(dataDir: string): string {
  return join(dataDir, 'postmaster.pid')
}

/** Undefined when there is none, or when it has just been created and is still empty. */
export async function readPidFile(dataDir: string): Promise<PidFile | undefined> {
  const text = await readFile(pidFilePath(dataDir), 'utf8').catch(() => '')
  const lines = text.split('\n')
  // A single-user backend writes its pid as a negative number.
  const pid = Math.abs(Number(lines[0]))
  const port = Number(lines[3])
  const status = (lines[7] ?? '').trim()
  return Number.isInteger(pid) && pid > 0 ? { pid, port, status, text } : undefined
}

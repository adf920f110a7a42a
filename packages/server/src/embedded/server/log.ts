import { type FileHandle, open, readFile, rename, stat } from 'node:fs/promises'
import { join } from 'node:path'

const maxBytes = 10 * 1024 * 1024

export function logPath(dir: string): string {
  return join(dir, 'postgres.log')
}

export interface OpenLog {
  readonly file: FileHandle
  /** Where the lines of this run begin. */
  readonly offset: number
}

/** Opens the log to append to it. One older log is kept. Only its owner may read it: a failing statement appears there in full. */
export async function openLog(dir: string): Promise<OpenLog> {
  const { size } = await stat(logPath(dir)).catch(() => ({ size: 0 }))
  if (size > maxBytes) await rename(logPath(dir), `${logPath(dir)}.1`)
  return { file: await open(logPath(dir), 'a', 0o600), offset: size > maxBytes ? 0 : size }
}

export async function readLog(dir: string, offset: number): Promise<string> {
  const log = await readFile(logPath(dir)).catch(() => Buffer.alloc(0))
  return log.subarray(offset).toString('utf8')
}

/** For the end of an error message. */
export function lastLines(text: string, count: number): string {
  const lines = text.trimEnd().split('\n').slice(-count)
  return lines.map((line) => `    ${line}`).join('\n')
}

// A command that prints and exits, run in the process of the test: arguments in; both streams and the exit code out.

import { Readable, Writable } from 'node:stream'
import { vi } from 'vitest'
import { type commands, run } from '../program.ts'

export interface CliOptions {
  readonly env?: NodeJS.ProcessEnv
  readonly input?: string
  /** Other commands than those of `pawl`. */
  readonly table?: typeof commands
}

export interface CliEnd {
  readonly code: number | null
  readonly stdout: string
  readonly stderr: string
}

/** The test's own environment must not reach the command. */
export const commandEnv: NodeJS.ProcessEnv = {
  DATABASE_URL: undefined,
  PAWL_DATABASE_URL: undefined,
  PAWL_DEV_DIR: '/nonexistent',
  NO_COLOR: undefined,
  FORCE_COLOR: undefined,
}

class Captured extends Writable {
  text = ''

  override _write(chunk: Buffer, _encoding: BufferEncoding, done: () => void): void {
    this.text += chunk.toString('utf8')
    done()
  }
}

let isRunning = false

/** One command at a time: they share the environment of this process. */
export async function pawl(args: readonly string[], { env, input = '', table }: CliOptions = {}): Promise<CliEnd> {
  if (isRunning) throw new Error('another command runs in this process; await it first')
  isRunning = true
  const [stdout, stderr] = [new Captured(), new Captured()]
  for (const [name, value] of Object.entries({ ...commandEnv, ...env })) vi.stubEnv(name, value)
  try {
    const code = await run(['node', 'pawl', ...args], { stdin: Readable.from([Buffer.from(input)]), stdout, stderr }, table)
    return { code, stdout: stdout.text, stderr: stderr.text }
  } finally {
    vi.unstubAllEnvs()
    isRunning = false
  }
}

export async function pawlJson<T = Record<string, unknown>>(args: readonly string[], options: CliOptions = {}): Promise<T> {
  return parsed(await pawl([...args, '-o', 'json'], options))
}

export function parsed<T>({ code, stdout, stderr }: CliEnd): T {
  if (code !== 0) throw new Error(`exit ${code}: ${stderr}`)
  return JSON.parse(stdout) as T
}

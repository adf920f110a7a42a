import { execFile } from 'node:child_process'
import type { Account } from './account.ts'

export interface RunOptions {
  readonly cwd: string
  readonly env: NodeJS.ProcessEnv
  readonly runAs: Account | undefined
}

export type RunResult =
  | { readonly ok: true; readonly output: string }
  | { readonly ok: false; readonly output: string; readonly error: Error }

/** Runs a program to its end and returns what it printed. A failure is a value: each caller has its own advice to give. */
export function run(program: string, args: readonly string[], { cwd, env, runAs }: RunOptions): Promise<RunResult> {
  return new Promise<RunResult>((resolve) => {
    execFile(program, args, { cwd, env, windowsHide: true, maxBuffer: 4 * 1024 * 1024, ...runAs }, (error, stdout, stderr) => {
      const output = `${stdout}${stderr}`.trim()
      resolve(error === null ? { ok: true, output } : { ok: false, output: output === '' ? error.message : output, error })
    })
    // Node reports some failures to spawn by callback, and others, such as a refused change of user, by throwing.
  }).catch((error: unknown) => ({
    ok: false,
    output: String(error),
    error: error instanceof Error ? error : new Error(String(error)),
  }))
}

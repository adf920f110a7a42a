// One step of a longer run: a program with a name, its output kept, its time measured, and one aligned line when it is done.

import { spawn } from 'node:child_process'
import { dirname } from 'node:path'
import { fileURLToPath } from 'node:url'

export const root = dirname(dirname(fileURLToPath(import.meta.url)))

export interface Program {
  readonly name: string
  readonly args: readonly string[]
  /** Another Node than this one. */
  readonly node?: string
  readonly env?: Readonly<Record<string, string>>
  /** Shows the output while it runs; otherwise it is shown only if the program fails. */
  readonly isLive?: boolean
  readonly timeoutMs?: number
}

export interface Ended {
  readonly name: string
  readonly ok: boolean
  readonly exit: number | null
  readonly ms: number
  /** stdout and stderr as they came; empty when it was live. */
  readonly output: string
  readonly stdout: string
  readonly isTimedOut: boolean
}

/** Time between SIGTERM and SIGKILL. */
const patienceMs = 20_000

/** Runs a script of Node's to its end. It is asked to end when its time is over. */
export function runNode(program: Program): Promise<Ended> {
  const startedMs = performance.now()
  const { isLive = false, timeoutMs } = program
  const child = spawn(program.node ?? process.execPath, [...program.args], {
    cwd: root,
    env: { ...process.env, ...program.env },
    stdio: ['ignore', isLive ? 'inherit' : 'pipe', isLive ? 'inherit' : 'pipe'],
  })
  let output = ''
  let stdout = ''
  let isTimedOut = false
  child.stdout?.setEncoding('utf8').on('data', (text: string) => {
    output += text
    stdout += text
  })
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    output += text
  })
  const timers: NodeJS.Timeout[] = []
  if (timeoutMs !== undefined) {
    const end = (signal: NodeJS.Signals) => () => {
      isTimedOut = true
      child.kill(signal)
    }
    timers.push(setTimeout(end('SIGINT'), timeoutMs), setTimeout(end('SIGKILL'), timeoutMs + patienceMs))
  }
  return new Promise((resolve, reject) => {
    child.on('error', reject)
    child.on('close', (exit) => {
      for (const timer of timers) clearTimeout(timer)
      resolve({
        name: program.name,
        ok: exit === 0 && !isTimedOut,
        exit,
        ms: performance.now() - startedMs,
        output,
        stdout,
        isTimedOut,
      })
    })
  })
}

/** Prints how it went, and what it said if it failed. */
export function report({ name, ok, ms, output, isTimedOut }: Ended, detail = ''): void {
  if (!ok && output.trim() !== '') console.log(`\n${output.trim()}\n`)
  line(ok ? 'ok' : 'failed', name, ms, isTimedOut ? 'its time was over' : detail)
}

export function line(state: 'ok' | 'failed' | 'skipped' | 'note', name: string, ms: number | undefined, detail = ''): void {
  const time = ms === undefined ? '' : `${(ms / 1000).toFixed(1)} s`
  console.log(`${state.padEnd(7)}  ${name.padEnd(40)}  ${time.padStart(8)}  ${detail}`.trimEnd())
}

/** The last line of stdout of every long command. */
export function summary(counts: { readonly passed: number; readonly failed: number; readonly skipped: number }): string {
  return `${counts.passed} passed, ${counts.failed} failed${counts.skipped > 0 ? `, ${counts.skipped} skipped` : ''}`
}

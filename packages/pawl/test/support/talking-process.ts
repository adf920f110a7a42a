// A process in the hands of a test: what it says, a line of JSON each, is waited for, and it can be told things, killed, stopped and
// continued. It never outlives its test.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { onTestFinished } from 'vitest'
import { until } from './database.ts'

const root = fileURLToPath(new URL('../../../../', import.meta.url))

/** The kinds of line that carry this event, also where several events share one shape. */
type SaidAs<Said, Event> = Said extends { event: infer Names } ? (Event extends Names ? Said : never) : never

export class TalkingProcess<Said extends { readonly event: string }, Word extends string> {
  readonly said: Said[] = []
  readonly #child: ChildProcess
  readonly #ended: Promise<unknown>
  #hasEnded = false
  #stderr = ''

  constructor(program: string, spec: unknown, env: NodeJS.ProcessEnv = {}) {
    this.#child = spawn(process.execPath, [program, JSON.stringify(spec)], {
      cwd: root,
      stdio: 'pipe',
      env: { ...process.env, ...env },
    })
    this.#ended = once(this.#child, 'close').then(() => {
      this.#hasEnded = true
    })
    this.#child.stdin!.on('error', () => undefined)
    this.#child.stderr!.setEncoding('utf8').on('data', (text: string) => {
      this.#stderr = (this.#stderr + text).slice(-20_000)
    })
    createInterface({ input: this.#child.stdout! }).on('line', (line) => this.said.push(JSON.parse(line) as Said))
    onTestFinished(() => this.kill())
  }

  get pid(): number {
    return this.#child.pid!
  }

  get signal(): NodeJS.Signals | null {
    return this.#child.signalCode
  }

  get stderr(): string {
    return this.#stderr
  }

  heard<Event extends Said['event']>(event: Event): SaidAs<Said, Event>[] {
    return this.said.filter((said) => said.event === event) as unknown as SaidAs<Said, Event>[]
  }

  /** Waits until it has said this so many times, and gives what it said. */
  async hears<Event extends Said['event']>(event: Event, times = 1): Promise<SaidAs<Said, Event>[]> {
    try {
      await until(`a process says '${event}' ${times} time(s)`, () => this.heard(event).length >= times || this.#hasEnded, 40_000)
      if (this.heard(event).length < times) throw new Error(`The process ended before it said '${event}' ${times} time(s).`)
      return this.heard(event)
    } catch (cause) {
      throw new Error(`${String(cause)} It said ${JSON.stringify(this.said.slice(-20))}, and on stderr: ${this.#stderr}`, {
        cause,
      })
    }
  }

  tell(word: Word): void {
    this.#child.stdin!.write(`${word}\n`)
  }

  /** SIGKILL, which also ends a stopped process; returns when it is gone and everything it said was heard. */
  async kill(): Promise<void> {
    if (!this.#hasEnded) this.#child.kill('SIGKILL')
    await this.#ended
  }

  pause(): void {
    this.#child.kill('SIGSTOP')
  }

  resume(): void {
    this.#child.kill('SIGCONT')
  }

  async ended(): Promise<NodeJS.Signals | null> {
    await this.#ended
    return this.signal
  }
}

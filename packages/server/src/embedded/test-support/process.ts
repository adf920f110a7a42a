import { type ChildProcess, spawn } from 'node:child_process'
import { EventEmitter, once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { onTestFinished } from 'vitest'
import type { Account } from '../binaries/account.ts'
import type { EmbeddedOptions } from '../index.ts'

export interface LaunchOptions extends Omit<EmbeddedOptions, 'onNotice'> {
  readonly afterwards?: 'stay' | 'leave'
  readonly as?: Account | undefined
  readonly env?: NodeJS.ProcessEnv
  /** Gives the process a group of its own, as a shell does for a foreground job. */
  readonly ownGroup?: boolean
  /** A program and its arguments that run the process in their own way, such as setpriv. */
  readonly through?: readonly string[]
  readonly script?: string
}

export interface Launched {
  readonly event: 'running' | 'failed' | 'stopped'
  readonly url: string
  readonly port: number
  readonly dataDir: string
  readonly pid: number
  readonly how: 'started' | 'adopted'
  readonly code: string
  readonly message: string
}

/** A child process that starts a server; see launch.ts. */
export class Launch {
  readonly child: ChildProcess
  readonly notices: string[] = []
  readonly #said: Launched[] = []
  readonly #news = new EventEmitter()
  readonly #ended: Promise<unknown>
  #stderr = ''
  #hasEnded = false

  constructor({
    afterwards = 'stay',
    as,
    env,
    ownGroup = false,
    through = [],
    script = launchScript,
    ...options
  }: LaunchOptions) {
    const node = [process.execPath, '--import', tsx, '--conditions=@pawl/source', script, JSON.stringify(options), afterwards]
    const [program = process.execPath, ...args] = [...through, ...node]
    this.child = spawn(program, args, { stdio: 'pipe', detached: ownGroup, env: { ...process.env, ...env }, ...as })
    this.child.stderr?.setEncoding('utf8').on('data', (text: string) => (this.#stderr += text))
    onTestFinished(() => void this.child.kill('SIGKILL'))
    // 'close' comes after the last of its output.
    this.#ended = once(this.child, 'close')
    createInterface({ input: this.child.stdout! }).on('line', (line) => this.#hear(line))
    void this.#ended.then(() => {
      this.#hasEnded = true
      this.#news.emit('news')
    })
  }

  #hear(line: string): void {
    const said = JSON.parse(line) as Launched | { event: 'notice'; line: string }
    if (said.event === 'notice') this.notices.push(said.line)
    else this.#said.push(said)
    this.#news.emit('news')
  }

  /** The next thing that it says, notices aside. */
  async next(): Promise<Launched> {
    for (;;) {
      const said = this.#said.shift()
      if (said !== undefined) return said
      if (this.#hasEnded) throw new Error(`the launched process said nothing more: ${this.#stderr}`)
      await once(this.#news, 'news')
    }
  }

  async running(): Promise<Launched> {
    const said = await this.next()
    if (said.event !== 'running') throw new Error(`the launched process failed: ${said.message}`)
    return said
  }

  async stop(): Promise<void> {
    this.child.stdin?.write('stop\n')
    const said = await this.next()
    if (said.event !== 'stopped') throw new Error(`the launched process did not stop: ${said.message}`)
    await this.#ended
  }

  async kill(signal: NodeJS.Signals = 'SIGKILL'): Promise<void> {
    this.child.kill(signal)
    await this.#ended
  }

  async ended(): Promise<number | null> {
    await this.#ended
    return this.child.exitCode
  }
}

export const launchScript = fileURLToPath(new URL('./launch.ts', import.meta.url))
const tsx = import.meta.resolve('tsx')

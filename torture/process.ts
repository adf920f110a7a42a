// A process under test. Its environment says which program of which scenario it runs; it plants its bug, installs its faults and runs the
// program. The keeper's thread of the process loads this module too, for its own bug and faults.

import { appendFileSync, existsSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { isMainThread } from 'node:worker_threads'
import type { Logger, Pawl } from 'pawl'
import { installProbe, keeperTesting, type ProbeName, resetConnections } from 'pawl/testing'
import { markOwn } from '../packages/pawl/src/db/classify.ts'
import { plantInProcess } from './canary.ts'
import { History } from './history.ts'
import { type FaultKind, type PlannedFault, purposeOf } from './plan.ts'
import type { Caller, CallerOptions } from './pool.ts'
import type { ProcessOptions } from './rig.ts'
import { canaryNamed, scenarioNamed } from './scenarios.ts'

export interface ChildOptions extends Required<ProcessOptions> {
  readonly scenario: string
  readonly slot: string
  /** Which start of the slot this is. */
  readonly start: number
  readonly dir: string
  readonly url: string
  /** Where it asks for faults that it cannot do to itself. */
  readonly control: string
  readonly leaseMs: number
  readonly beatMs: number
  readonly canary?: string | undefined
}

export interface Request {
  readonly slot: string
  readonly what: FaultKind
  readonly purpose?: string | undefined
  readonly ms?: number | undefined
}

type Events = Readonly<Record<string, Parameters<Pawl['on']>[0]>>

/** What every program has. */
export class Subject {
  readonly options: ChildOptions
  /** The slot and which start of it. */
  readonly proc: string
  readonly history: History
  readonly logger: Logger
  readonly #stop = new AbortController()

  constructor(options: ChildOptions, history: History) {
    this.options = options
    this.proc = history.proc
    this.history = history
    const file = join(options.dir, `${options.slot}.log`)
    const log = (level: string) => (fields: object, message: string) =>
      appendFileSync(file, `${JSON.stringify({ wall: Date.now(), proc: this.proc, level, message, ...fields })}\n`)
    this.logger = { debug() {}, info() {}, warn: log('warn'), error: log('error') }
  }

  /** The pool of an application in this process, with `max` connections. */
  caller(max: number, queryTimeoutMs = 5000): CallerOptions {
    const { proc: name, history, logger, options } = this
    return { url: options.url, name, max, history, logger, queryTimeoutMs }
  }

  /** Starts a worker or a runner and stops it on SIGTERM. Each event of Pawl that is named is written down. */
  async serve<W extends { start(): Promise<unknown> }>(
    pawl: Pawl,
    events: Events,
    create: () => W,
    stop: (worker: W) => Promise<unknown>,
  ) {
    for (const [op, name] of Object.entries(events)) pawl.on(name, (event: object) => this.history.write(op, { ...event }))
    for (;;) {
      const worker = create()
      try {
        await worker.start()
        process.on('SIGTERM', () => void stop(worker).then(() => this.#end()))
        return this.history.write('started', { pid: process.pid })
      } catch (error) {
        // The server may be down now; a process manager would start us again.
        this.logger.error({ error: String(error) }, 'could not start')
        await sleep(100)
      }
    }
  }

  /** Runs the loops of users until SIGTERM. */
  async live(loops: () => readonly Promise<unknown>[], user: Caller): Promise<void> {
    process.on('SIGTERM', () => this.stop())
    this.history.write('started', { pid: process.pid })
    await Promise.all(loops())
    await user.close()
    this.#end()
  }

  stop(): void {
    this.#stop.abort()
  }

  /** One turn after the other until SIGTERM; after a failed turn comes the next one. */
  async every(everyMs: number | (() => number), turn: () => Promise<unknown>): Promise<void> {
    const { signal } = this.#stop
    while (!signal.aborted) {
      await turn().catch((error: unknown) => this.logger.warn({ error: String(error) }, 'a turn failed'))
      await sleep(typeof everyMs === 'number' ? everyMs : everyMs(), undefined, { signal }).catch(() => undefined)
    }
  }

  #end(): never {
    this.history.write('stopped')
    process.exit(0)
  }
}

/** Counts the hits of probes and lets the next planned fault happen at its place. */
function installFaults(slot: string, faults: readonly PlannedFault[]): void {
  let next = 0
  let hits = 0
  if (faults.length === 0) return
  installProbe(async (name) => {
    const fault = faults[next]
    if (fault === undefined || fault.probe !== name || ++hits < fault.hit || existsSync(join(options.dir, 'healed'))) return
    next++
    hits = 0
    // Written before it happens: after a kill it is too late. The number of lines tells the supervisor which fault is next.
    history.write('fault', { slot, ...fault })
    await fire(slot, fault, name)
  })
}

async function fire(slot: string, { kind, ms }: PlannedFault, probe: ProbeName): Promise<void> {
  const ask = async (request: Partial<Request> = {}) =>
    void (await fetch(options.control, { method: 'POST', body: JSON.stringify({ slot, what: kind, ...request }) }))
  switch (kind) {
    case 'kill':
      process.kill(process.pid, 'SIGKILL')
      return new Promise(() => undefined)
    case 'reset':
      resetConnections()
      // The keeper's thread loses its own connections, a process all that it has: also those that its handlers opened.
      return isMainThread ? ask() : undefined
    case 'sql-40001':
      // As if a statement of Pawl had failed there: the same error from a handler is the handler's failure.
      throw markOwn(Object.assign(new Error('could not serialize access (planned)'), { code: '40001' }))
    case 'block':
      for (const until = performance.now() + (ms ?? 2000); performance.now() < until; );
      return
    default:
      return ask({ purpose: purposeOf(probe), ms })
  }
}

const options = JSON.parse(process.env.PAWL_TORTURE_CHILD ?? '{}') as ChildOptions
const history = new History(options.dir, `${options.slot}.${options.start}`, isMainThread ? '' : ' keeper')
plantInProcess(options.canary === undefined ? undefined : canaryNamed(options.canary).canary, options)
if (isMainThread) {
  installFaults(options.slot, options.faults)
  keeperTesting.probeModule = import.meta.url
  const subject = new Subject(options, history)
  // Without its supervisor nothing would ever end this process.
  process.stdin.on('close', () => process.kill(process.pid, 'SIGKILL')).resume()
  process.stdin.unref?.()
  process.on('unhandledRejection', (error) => {
    subject.logger.error(
      { error: error instanceof Error ? (error.stack ?? error.message) : String(error) },
      'unhandled rejection',
    )
    process.exit(1)
  })
  await scenarioNamed(options.scenario).programs[options.role]!(subject)
} else installFaults(`${options.slot} keeper`, options.keeperFaults)

// The supervisor: one PostgreSQL of its own, a proxy and a process for each slot, and the faults that a process cannot do to itself. It ends
// only what it has started.

import { type ChildProcess, spawn } from 'node:child_process'
import { closeSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { type EmbeddedServer, startEmbedded } from '@pawl/server/embedded'
import { migrate } from 'pawl'
import type pg from 'pg'
import { Connection, type DatabaseOptions } from '../packages/pawl/src/db/driver.ts'
import { FaultProxy, type LostMessage } from '../packages/pawl/test/support/fault-proxy.ts'
import { type BuiltPrograms, buildPrograms } from '../packages/pawl/test/support/programs.ts'
import { type Canary, plantInDatabase, plantInRig } from './canary.ts'
import { childEnvironment } from './child.ts'
import { clockShiftMs, stepClock } from './clock.ts'
import { ControlServer, type Request } from './control.ts'
import type { PlannedFault } from './faults.ts'
import { History, readHistory } from './history.ts'
import { hardyPool } from './pool.ts'
import type { Scenario } from './scenario.ts'

const root = dirname(dirname(fileURLToPath(import.meta.url)))

/** An orderly stop lets running jobs end; three processes on a busy machine take their time. */
const stopMs = 15_000

const failedStartsMax = 3

export interface RigOptions {
  readonly leaseMs: number
  readonly beatMs: number
  readonly canary?: Canary | undefined
}

export interface ProcessOptions {
  /** Which of the scenario's programs it runs. */
  readonly role?: string
  /** What that program is told beside. */
  readonly how?: string
  readonly faults?: readonly PlannedFault[]
  readonly keeperFaults?: readonly PlannedFault[]
  readonly concurrency?: number
}

interface Slot extends Required<ProcessOptions> {
  readonly proxy: FaultProxy
  child: ChildProcess | undefined
  starts: number
  failedStarts: number
  isWanted: boolean
}

export class Rig {
  readonly scenario: Scenario
  readonly options: RigOptions
  /** Histories, the sink and the logs. */
  readonly dir: string
  readonly history: History
  /** Straight to the server, for looking and for the faults themselves. */
  readonly admin: pg.Pool
  readonly #slots = new Map<string, Slot>()
  readonly #serverDir: string
  readonly #built: BuiltPrograms
  #server: EmbeddedServer
  #control!: ControlServer
  readonly #armed = new Set<LostMessage>()
  #isHealed = false
  #arePausesOver = false
  #restarting: Promise<void> | undefined
  #clock: Promise<void> = Promise.resolve()

  private constructor(
    scenario: Scenario,
    options: RigOptions,
    started: { serverDir: string; server: EmbeddedServer; built: BuiltPrograms },
  ) {
    const { serverDir, server, built } = started
    this.scenario = scenario
    this.#built = built
    this.options = options
    this.#serverDir = serverDir
    this.#server = server
    this.dir = join(serverDir, 'history')
    mkdirSync(this.dir, { recursive: true })
    this.history = new History(this.dir, 'rig')
    this.admin = hardyPool({ url: server.url, name: 'torture admin', max: 8 })
  }

  static async open(scenario: Scenario, options: RigOptions): Promise<Rig> {
    // First what may fail: sources that do not compile must not leave a server behind.
    const built = await buildPrograms(scenario.programs)
    const serverDir = mkdtempSync(join(tmpdir(), 'pawl-torture-'))
    const server = await startEmbedded({ dir: join(serverDir, 'pg'), port: 0, database: 'torture', settings: serverSettings })
    const rig = new Rig(scenario, options, { serverDir, server, built })
    openRigs.add(rig)
    await migrate({
      url: server.url,
      pooler: 'none',
      connectTimeoutMs: 10_000,
      queryTimeoutMs: 60_000,
      applicationName: 'torture',
    })
    await rig.admin.query(readFileSync(scenario.audit, 'utf8'))
    await plantInDatabase(options.canary, (text) => rig.admin.query(text))
    plantInRig(options.canary)
    rig.#control = await ControlServer.open((request) => rig.#serve(request))
    return rig
  }

  // ---- processes

  /** Starts a process, and starts it again whenever it ends, until it is stopped. */
  async startProcess(slot: string, options: ProcessOptions = {}): Promise<void> {
    const { role = 'worker', how = '', faults = [], keeperFaults = [], concurrency = 8 } = options
    const proxy = await this.proxy()
    const asked = { role, how, faults, keeperFaults, concurrency }
    this.#slots.set(slot, { ...asked, proxy, child: undefined, starts: 0, failedStarts: 0, isWanted: true })
    this.#spawn(slot)
  }

  async proxy(): Promise<FaultProxy> {
    return FaultProxy.start(this.#server.url)
  }

  /**
   * The next commit on a connection of this purpose happens, but its answer never arrives and the connection breaks. Where transactions run
   * only the COMMIT itself is meant; an engine's connection commits with every statement; 'caller commit' means a caller's transactions.
   */
  loseNextCommit(proxy: FaultProxy, slot: string, purpose: string): void {
    const isCommit = purpose === 'handler' || purpose === 'own' || purpose.endsWith(' commit')
    const lost = proxy.loseReply(isCommit ? /(^|\n)commit;?$/i : /(?:)/, {
      of: new RegExp(` ${purpose.replace(/ commit$/, '')}$`),
      toCommit: true,
    })
    this.#armed.add(lost)
    void lost.happened.then(() => this.history.write('answer lost', { slot, purpose }))
  }

  /** An engine connection of the rig's own, for scenarios that play single statements. */
  get database(): DatabaseOptions {
    return { url: this.#server.url, pooler: 'none', connectTimeoutMs: 5000, queryTimeoutMs: 10_000, applicationName: 'rig' }
  }

  connection(purpose: string): Connection {
    return new Connection(this.database, purpose)
  }

  get processes(): number {
    return this.#slots.size
  }

  pidOf(slot: string): number | undefined {
    return this.#slots.get(slot)?.child?.pid
  }

  signal(slot: string, signal: NodeJS.Signals): void {
    this.#slots.get(slot)?.child?.kill(signal)
  }

  #spawn(name: string): void {
    const slot = this.#slots.get(name)!
    const fired = (of: string) => readHistory(this.dir, name).filter((entry) => entry.op === 'fault' && entry.slot === of).length
    const left = (faults: readonly PlannedFault[], of: string) => (this.#isHealed ? [] : faults.slice(fired(of)))
    slot.starts++
    const output = openSync(join(this.dir, `${name}.log`), 'a')
    const child = spawn(process.execPath, [this.#built.fileOf(slot.role)], {
      cwd: root,
      stdio: ['ignore', output, output],
      env: {
        ...process.env,
        ...childEnvironment({
          slot: name,
          start: slot.starts,
          how: slot.how,
          dir: this.dir,
          url: slot.proxy.url,
          controlPort: this.#control.port,
          leaseMs: this.options.leaseMs,
          beatMs: this.options.beatMs,
          concurrency: slot.concurrency,
          faults: left(slot.faults, name),
          keeperFaults: left(slot.keeperFaults, `${name} keeper`),
          ...(this.options.canary === undefined ? {} : { canary: this.options.canary.name }),
        }),
      },
    })
    closeSync(output)
    slot.child = child
    child.on('exit', (code, signal) => {
      this.history.write('exit', { slot: name, start: slot.starts, code, signal })
      slot.child = undefined
      if (code !== 0 && code !== null) this.#assertStarts(name, slot)
      if (slot.isWanted) this.#spawn(name)
    })
  }

  /** A program that cannot even start would be started for ever, and the run would look clean. */
  #assertStarts(name: string, slot: Slot): void {
    const hasStarted = readHistory(this.dir, name).some(
      (entry) => entry.proc === `${name}.${slot.starts}` && entry.op === 'started',
    )
    slot.failedStarts = hasStarted ? 0 : slot.failedStarts + 1
    if (slot.failedStarts < failedStartsMax) return
    slot.isWanted = false
    const log = readFileSync(join(this.dir, `${name}.log`), 'utf8')
    throw new Error(`The process ${name} cannot start:\n${log.slice(-2000)}`)
  }

  /** Stops every process in order; one that does not stop in time is killed and told of. */
  async stopProcesses(): Promise<string[]> {
    const late: string[] = []
    await Promise.all(
      [...this.#slots].map(async ([name, slot]) => {
        slot.isWanted = false
        if (slot.child === undefined) return
        slot.child.kill('SIGTERM')
        if (await this.#ended(slot, stopMs)) return
        late.push(name)
        slot.child?.kill('SIGKILL')
        await this.#ended(slot, 10_000)
      }),
    )
    return late
  }

  /** Ends one process for good; says whether it stopped in order. */
  async stopProcess(name: string): Promise<boolean> {
    const slot = this.#slots.get(name)!
    slot.isWanted = false
    slot.child?.kill('SIGTERM')
    const isOrderly = await this.#ended(slot, stopMs)
    if (!isOrderly) {
      this.history.write('late stop', { slot: name })
      slot.child?.kill('SIGKILL')
      await this.#ended(slot, 10_000)
    }
    await slot.proxy.stop()
    this.#slots.delete(name)
    return isOrderly
  }

  async #ended(slot: Slot, timeoutMs: number): Promise<boolean> {
    const deadline = performance.now() + timeoutMs
    while (slot.child !== undefined && performance.now() < deadline) await sleep(10)
    return slot.child === undefined
  }

  // ---- faults

  async #serve(request: Request): Promise<void> {
    if (this.#isHealed) return
    const slotName = request.slot.split(' ')[0]!
    const slot = this.#slots.get(slotName)!
    switch (request.what) {
      case 'pause':
        return this.pause(slotName)
      case 'terminate':
        await this.query("select pg_terminate_backend(pid) from pg_stat_activity where application_name like $1 || '.%'", [
          slotName,
        ])
        return
      case 'reset':
        slot.proxy.reset()
        return
      case 'restart':
        return this.restartServer()
      case 'commit-unknown':
        // Armed now; it happens with the next commit, so nobody waits for it here.
        this.loseNextCommit(slot.proxy, slotName, request.purpose ?? 'engine')
        return
      case 'clock':
        return this.stepClock(request.ms ?? 0)
      case 'drain':
        slot.child?.kill('SIGTERM')
        return
    }
  }

  /** Stops the process and lets it go on once others have taken its jobs, or after a while when there are none to do so. */
  async pause(slotName: string, isLonely = false): Promise<void> {
    const pid = this.pidOf(slotName)
    if (pid === undefined) return
    process.kill(pid, 'SIGSTOP')
    // A watcher that was cut off itself waits ten times as long for an answer before it closes the paused process.
    const deadline = performance.now() + this.options.leaseMs + (isLonely ? 1000 : 14_000)
    try {
      while (performance.now() < deadline && !this.#arePausesOver) {
        await sleep(50)
        if (!isLonely && (await this.scenario.isTakenOver(this, pid))) break
      }
    } finally {
      if (this.pidOf(slotName) === pid) process.kill(pid, 'SIGCONT')
    }
  }

  /** kill -9 of the postmaster and a start with crash recovery. */
  restartServer(): Promise<void> {
    this.#restarting ??= this.#restart().finally(() => {
      this.#restarting = undefined
    })
    return this.#restarting
  }

  async #restart(): Promise<void> {
    const { port } = this.#server
    process.kill(this.#server.pid, 'SIGKILL')
    this.#server = await startEmbedded({ dir: join(this.#serverDir, 'pg'), port, database: 'torture', settings: serverSettings })
    if (this.#server.port !== port) throw new Error('The port of the server was taken while it was down.')
  }

  /** Moves database time by so much more; one step after the other. */
  stepClock(ms: number): Promise<void> {
    this.#clock = this.#clock.then(() => this.#transaction((client) => stepClock(client, ms)))
    return this.#clock
  }

  /** Paused processes go on. A process that is to stop may wait for a lock of one, and a producer is taken over by no other. */
  endPauses(): void {
    this.#arePausesOver = true
  }

  /** No more faults: paused processes go on, the server is up, the clock is right. */
  async heal(): Promise<void> {
    this.#isHealed = true
    this.endPauses()
    this.#control.heal()
    for (const lost of this.#armed) lost.cancel()
    await this.#restarting
    const shiftMs = await clockShiftMs(this)
    if (shiftMs !== 0) await this.stepClock(-shiftMs)
  }

  // ---- looking

  /** Asks the server, and goes on asking while it is down. */
  async query<Row = Record<string, unknown>>(text: string, values: unknown[] = []): Promise<Row[]> {
    for (let tried = 1; ; tried++) {
      try {
        return (await this.admin.query(text, values)).rows as Row[]
      } catch (error) {
        const isRefused = /^(22|23|42)/.test(String((error as { code?: string }).code ?? ''))
        if (isRefused || tried > 200) throw error
        await sleep(100)
      }
    }
  }

  async #transaction(work: (client: pg.PoolClient) => Promise<void>): Promise<void> {
    for (let tried = 1; ; tried++) {
      let client: pg.PoolClient | undefined
      try {
        client = await this.admin.connect()
        await client.query('begin')
        await work(client)
        await client.query('commit')
        client.release()
        return
      } catch (error) {
        client?.release(true)
        if (tried > 100) throw error
        await sleep(100)
      }
    }
  }

  /** Waits until the condition holds; says whether it did in time. */
  async until(look: () => Promise<boolean> | boolean, timeoutMs: number): Promise<boolean> {
    const deadline = performance.now() + timeoutMs
    for (;;) {
      if (await look()) return true
      if (performance.now() > deadline) return false
      await sleep(50)
    }
  }

  /** When this process must end at once: whatever it started ends with it. */
  abandon(): void {
    for (const slot of this.#slots.values()) {
      slot.isWanted = false
      slot.child?.kill('SIGKILL')
    }
    this.#built.remove()
    process.kill(this.#server.pid, 'SIGQUIT')
  }

  async close(options: { keep: boolean }): Promise<void> {
    openRigs.delete(this)
    for (const slot of this.#slots.values()) {
      slot.isWanted = false
      slot.child?.kill('SIGKILL')
      await slot.proxy.stop()
    }
    this.#built.remove()
    await this.#control.close()
    await this.admin.end()
    await this.#server.stop('immediate').catch(() => undefined)
    rmSync(options.keep ? join(this.#serverDir, 'pg') : this.#serverDir, { recursive: true, force: true })
  }
}

/** Rigs that run now. */
export const openRigs = new Set<Rig>()

const serverSettings = {
  max_connections: '150',
  max_prepared_transactions: '20',
  shared_buffers: '64MB',
  log_min_messages: 'fatal',
}

// The supervisor: one PostgreSQL server, a proxy and a process for each slot, and the faults that a process cannot do to itself. It ends
// only processes that it started.

import { type ChildProcess, spawn } from 'node:child_process'
import { closeSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { text as textOf } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { type EmbeddedServer, startEmbedded } from '@pawl/server/embedded'
import { migrate } from 'pawl/admin'
import type pg from 'pg'
import type { DatabaseOptions } from '../packages/pawl/src/db/driver.ts'
import { FaultProxy, type LostMessage } from '../packages/pawl/test/support/fault-proxy.ts'
import { type BuiltPrograms, buildPrograms } from '../packages/pawl/test/support/programs.ts'
import { type Canary, plantInDatabase, plantInRig } from './canary.ts'
import { History, readHistory } from './history.ts'
import type { PlannedFault } from './plan.ts'
import { hardyPool, inTransaction } from './pool.ts'
import type { ChildOptions, Request } from './process.ts'
import { openRecorder } from './recorder.ts'
import type { Scenario } from './scenario.ts'

export const root = dirname(dirname(fileURLToPath(import.meta.url)))

/** An orderly stop lets running jobs end; three processes on a busy machine need time. */
const stopMs = 15_000
const failedStartsMax = 3
const userPauseMs = 2500

export type RigOptions = { readonly leaseMs: number; readonly beatMs: number; readonly canary?: Canary | undefined }

export interface ProcessOptions {
  /** Which of the scenario's programs it runs, and the argument of that program. */
  readonly role?: string
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

type Started = { readonly dir: string; readonly built: BuiltPrograms; server: EmbeddedServer }

export class Rig {
  readonly scenario: Scenario
  readonly options: RigOptions
  readonly dir: string
  readonly history: History
  /** Straight to the server, for reading and for the faults themselves. */
  readonly admin: pg.Pool
  readonly #started: Started
  readonly #slots = new Map<string, Slot>()
  readonly #control: Server
  readonly #armed: LostMessage[] = []
  #faults: 'on' | 'no more pauses' | 'healed' = 'on'
  #restarting: Promise<void> | undefined
  #clock: Promise<unknown> = Promise.resolve()

  private constructor(scenario: Scenario, options: RigOptions, started: Started) {
    this.scenario = scenario
    this.options = options
    this.#started = started
    this.dir = join(started.dir, 'history')
    mkdirSync(this.dir, { recursive: true })
    this.history = new History(this.dir, 'rig')
    this.admin = hardyPool({ url: started.server.url, name: 'torture admin', max: 8 })
    this.#control = createServer((request, response) => {
      void (async () => {
        await this.#serve(JSON.parse(await textOf(request)) as Request)
        response.end()
      })()
    })
  }

  static async open(scenario: Scenario, options: RigOptions): Promise<Rig> {
    // First what may fail: sources that do not compile must leave no server running.
    const built = await buildPrograms({ process: new URL('./process.ts', import.meta.url) })
    const dir = mkdtempSync(join(tmpdir(), 'pawl-torture-'))
    const rig = new Rig(scenario, options, { dir, built, server: await startServer(dir, 0) })
    openRigs.add(rig)
    await migrate({ ...rig.database, queryTimeoutMs: 60_000 })
    await openRecorder(rig.query.bind(rig), scenario.recorded)
    await rig.admin.query(scenario.ledgers)
    await plantInDatabase(options.canary, (text) => rig.admin.query(text))
    plantInRig(options.canary)
    await new Promise<void>((resolve) => rig.#control.listen(0, '127.0.0.1', resolve))
    return rig
  }

  /** For connections of the rig's own. */
  get database(): DatabaseOptions {
    const { url } = this.#started.server
    return { url, pooler: 'none', connectTimeoutMs: 10_000, queryTimeoutMs: 10_000, applicationName: 'rig' }
  }

  // ---- processes

  /** Starts a process, and starts it again whenever it ends, until it is stopped. */
  async startProcess(slot: string, options: ProcessOptions = {}): Promise<void> {
    const { role = 'worker', how = '', faults = [], keeperFaults = [], concurrency = 8 } = options
    const state = { child: undefined, starts: 0, failedStarts: 0, isWanted: true }
    this.#slots.set(slot, { role, how, faults, keeperFaults, concurrency, proxy: await this.proxy(), ...state })
    this.#spawn(slot)
  }

  /** Starts a process and waits until it has met this fault. */
  async strike(slot: string, fault: PlannedFault): Promise<void> {
    await this.startProcess(slot, { faults: [fault] })
    await this.until(() => this.wrote('fault', slot) > 0)
  }

  signal(slot: string, signal: NodeJS.Signals): void {
    this.#slots.get(slot)?.child?.kill(signal)
  }

  #spawn(name: string): void {
    const slot = this.#slots.get(name)!
    const { role, how, concurrency, proxy } = slot
    const left = (faults: readonly PlannedFault[], of: string) =>
      this.#faults === 'healed' ? [] : faults.slice(this.#entries('fault', name).filter((entry) => entry.slot === of).length)
    const options: ChildOptions = {
      ...{
        scenario: this.scenario.name,
        slot: name,
        start: ++slot.starts,
        role,
        how,
        concurrency,
        dir: this.dir,
        url: proxy.url,
      },
      ...{ leaseMs: this.options.leaseMs, beatMs: this.options.beatMs, canary: this.options.canary?.name },
      control: `http://127.0.0.1:${(this.#control.address() as AddressInfo).port}`,
      faults: left(slot.faults, name),
      keeperFaults: left(slot.keeperFaults, `${name} keeper`),
    }
    const output = openSync(join(this.dir, `${name}.log`), 'a')
    // The process ends itself when its standard input closes, which is when this process ends.
    const child = spawn(process.execPath, [this.#started.built.fileOf('process')], {
      cwd: root,
      stdio: ['pipe', output, output],
      env: { ...process.env, PAWL_TORTURE_CHILD: JSON.stringify(options) },
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

  /** A program that cannot start would be restarted without end, and the run would count as clean. */
  #assertStarts(name: string, slot: Slot): void {
    const hasStarted = this.#entries('started', name).some(({ proc }) => proc === `${name}.${slot.starts}`)
    slot.failedStarts = hasStarted ? 0 : slot.failedStarts + 1
    if (slot.failedStarts < failedStartsMax) return
    slot.isWanted = false
    throw new Error(`The process ${name} cannot start:\n${readFileSync(join(this.dir, `${name}.log`), 'utf8').slice(-2000)}`)
  }

  /** Stops every process in order. Returns those that had to be killed. */
  async stopProcesses(): Promise<string[]> {
    const late = await Promise.all([...this.#slots.keys()].map(async (name) => ((await this.#stop(name)) ? [] : [name])))
    return late.flat()
  }

  /** Ends one process for good. Returns whether it stopped in order. */
  async stopProcess(name: string): Promise<boolean> {
    const isOrderly = await this.#stop(name)
    if (!isOrderly) this.history.write('late stop', { slot: name })
    await this.#slots.get(name)!.proxy.stop()
    this.#slots.delete(name)
    return isOrderly
  }

  async #stop(name: string): Promise<boolean> {
    const slot = this.#slots.get(name)!
    slot.isWanted = false
    slot.child?.kill('SIGTERM')
    const isOrderly = await this.until(() => slot.child === undefined, stopMs)
    slot.child?.kill('SIGKILL')
    await this.until(() => slot.child === undefined, 10_000)
    return isOrderly
  }

  // ---- faults

  async #serve({ slot: from, what, purpose, ms }: Request): Promise<void> {
    const name = from.split(' ')[0]!
    const slot = this.#slots.get(name)
    if (this.#faults === 'healed' || slot === undefined) return
    if (what === 'pause') await this.pause(name)
    if (what === 'reset') slot.proxy.reset()
    if (what === 'restart') await this.restartServer()
    if (what === 'clock') await this.stepClock(ms ?? 0)
    if (what === 'drain') slot.child?.kill('SIGTERM')
    // Armed now; it happens with the next commit.
    if (what === 'commit-unknown') this.loseNextCommit(slot.proxy, name, purpose ?? 'engine')
    if (what === 'terminate')
      await this.query("select pg_terminate_backend(pid) from pg_stat_activity where application_name like $1 || '.%'", [name])
  }

  proxy(): Promise<FaultProxy> {
    return FaultProxy.start(this.#started.server.url)
  }

  /**
   * The next commit on a connection of this purpose happens, its answer never arrives and the connection breaks. Where transactions run
   * only the COMMIT itself is meant; an engine's connection commits with every statement; 'caller commit' means a caller's transactions.
   */
  loseNextCommit(proxy: FaultProxy, slot: string, purpose: string): void {
    const isCommit = purpose === 'handler' || purpose === 'own' || purpose.endsWith(' commit')
    // A handler's name ends with the sessions of its incarnation.
    const of = new RegExp(` ${purpose.replace(/ commit$/, '')}( |$)`)
    const lost = proxy.loseReply(isCommit ? /^commit;?$/im : /(?:)/, { of, toCommit: true })
    this.#armed.push(lost)
    void lost.happened.then(() => this.history.write('answer lost', { slot, purpose }))
  }

  /** Stops a process until others have taken over what it held, or for a lease and a second when no other is there. */
  async pause(name: string, isLonely = false): Promise<void> {
    const child = this.#slots.get(name)?.child
    if (child?.pid === undefined) return
    child.kill('SIGSTOP')
    const began = performance.now()
    // A watcher that was cut off itself waits ten times as long for an answer before it closes the paused process.
    const longestMs = this.options.leaseMs + (isLonely ? 1000 : 14_000)
    try {
      while (performance.now() < began + longestMs && this.#faults === 'on') {
        await sleep(50)
        if (!isLonely && (await this.#isTakenOver(child.pid, performance.now() - began))) break
      }
    } finally {
      child.kill('SIGCONT')
    }
  }

  /** Whether others have everything that a process held. Users hold only the locks of a short transaction: some time is enough. */
  async #isTakenOver(pid: number, pausedMs: number): Promise<boolean> {
    const [row] = await this.query<{ workers: number; over: boolean | null }>(
      `select count(*)::integer as workers, bool_and(w.closed_at is not null) and not exists (
         select from pawl.${this.scenario.holds} h where h.holder = any (array_agg(w.id))
       ) as over
       from pawl.worker w join pawl.worker_process p on p.id = w.id where p.pid = $1`,
      [pid],
    )
    return row!.workers > 0 ? row!.over === true : pausedMs > userPauseMs
  }

  /** kill -9 of the postmaster and a start with crash recovery. */
  restartServer(): Promise<void> {
    const restart = async () => {
      const { port, pid } = this.#started.server
      process.kill(pid, 'SIGKILL')
      this.#started.server = await startServer(this.#started.dir, port)
      if (this.#started.server.port !== port) throw new Error('The port of the server was taken while it was down.')
      this.#restarting = undefined
    }
    this.#restarting ??= restart()
    return this.#restarting
  }

  /** Moves database time, one step after the other, each in one transaction: no reader sees a time in between. */
  async stepClock(ms: number): Promise<void> {
    const step = `create table if not exists pawl.clock_shift (ms bigint not null);
      insert into pawl.clock_shift values (${Math.round(ms)});
      insert into torture.step (ms) values (${Math.round(ms)});
      create or replace function pawl.now() returns timestamptz language sql volatile as
        'select clock_timestamp() + coalesce((select sum(ms) from pawl.clock_shift), 0) * interval ''1 millisecond''';`
    this.#clock = this.#clock.then(() => insisting(() => inTransaction(this.admin, (client) => client.query(step))))
    await this.#clock
  }

  /** Paused processes go on. A process that is to stop may wait for a lock of one, and a producer is taken over by no other. */
  endPauses(): void {
    this.#faults = 'no more pauses'
  }

  /** No more faults: paused processes go on, the server is up, the clock is right. */
  async heal(): Promise<void> {
    this.#faults = 'healed'
    writeFileSync(join(this.dir, 'healed'), '')
    for (const lost of this.#armed) lost.cancel()
    await this.#restarting
    await this.#clock
    const shiftMs = await this.count('select coalesce(sum(ms), 0) as n from torture.step')
    if (shiftMs !== 0) await this.stepClock(-shiftMs)
  }

  // ---- reading

  /** Asks the server, and asks again while it is down. */
  async query<Row = Record<string, unknown>>(text: string, values: unknown[] = []): Promise<Row[]> {
    return (await insisting(() => this.admin.query(text, values))).rows as Row[]
  }

  async count(text: string): Promise<number> {
    return Number((await this.query<{ n: unknown }>(text))[0]!.n)
  }

  #entries(op: string, slot?: string) {
    return readHistory(this.dir, slot).filter((entry) => entry.op === op)
  }

  /** How many such lines there are in the histories, or in those of one slot. */
  wrote(op: string, slot?: string): number {
    return this.#entries(op, slot).length
  }

  /** Waits until the condition holds. Returns whether it did in time. */
  async until(isSo: () => Promise<boolean> | boolean, timeoutMs = 20_000): Promise<boolean> {
    for (const deadline = performance.now() + timeoutMs; ; ) {
      if (await isSo()) return true
      if (performance.now() > deadline) return false
      await sleep(30)
    }
  }

  #killAll(): void {
    for (const slot of this.#slots.values()) {
      slot.isWanted = false
      slot.child?.kill('SIGKILL')
    }
    this.#started.built.remove()
  }

  /** When this process must end at once: everything that it started ends with it. */
  abandon(): void {
    this.#killAll()
    process.kill(this.#started.server.pid, 'SIGQUIT')
  }

  async close({ keep }: { keep: boolean }): Promise<void> {
    const { dir, server } = this.#started
    openRigs.delete(this)
    this.#killAll()
    for (const { proxy } of this.#slots.values()) await proxy.stop()
    this.#control.closeAllConnections()
    this.#control.close()
    await this.admin.end()
    await server.stop('immediate').catch(() => undefined)
    rmSync(keep ? join(dir, 'pg') : dir, { recursive: true, force: true })
  }
}

export const openRigs = new Set<Rig>()

function startServer(dir: string, port: number): Promise<EmbeddedServer> {
  const limits = { max_connections: '150', max_prepared_transactions: '20', shared_buffers: '64MB' }
  return startEmbedded({ dir: join(dir, 'pg'), port, database: 'torture', settings: { ...limits, log_min_messages: 'fatal' } })
}

/** Tries again while the server is down. */
async function insisting<T>(work: () => Promise<T>): Promise<T> {
  for (let tried = 1; ; tried++) {
    try {
      return await work()
    } catch (error) {
      const isRefused = /^(22|23|42)/.test(String((error as { code?: string }).code ?? ''))
      if (isRefused || tried > 200) throw error
      await sleep(100)
    }
  }
}

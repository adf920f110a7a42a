// The supervisor: one PostgreSQL of its own, a proxy and a process for each slot, and the faults that a process cannot do to itself. It ends
// only what it has started.

import { type ChildProcess, spawn } from 'node:child_process'
import { closeSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { type EmbeddedServer, startEmbedded } from '@pawl/server/embedded'
import { createPawl, migrate, type Pawl, silentLogger } from 'pawl'
import type pg from 'pg'
import { Connection } from '../packages/pawl/src/db/driver.ts'
import { type BuiltChild, buildChild } from './build.ts'
import { plantInDatabase, plantInRig } from './canaries/plant.ts'
import { childEnvironment } from './child.ts'
import { ControlServer, type Request } from './control.ts'
import { FaultProxy } from './fault-proxy.ts'
import type { PlannedFault } from './faults.ts'
import { History, readHistory } from './history.ts'
import { defineKinds } from './kinds.ts'
import { hardyPool } from './pool.ts'

const here = dirname(fileURLToPath(import.meta.url))
const root = dirname(here)

export interface RigOptions {
  readonly leaseMs: number
  readonly beatMs: number
  readonly canary?: string | undefined
}

interface Slot {
  readonly proxy: FaultProxy
  readonly faults: readonly PlannedFault[]
  readonly keeperFaults: readonly PlannedFault[]
  readonly concurrency: number
  child: ChildProcess | undefined
  starts: number
  isWanted: boolean
}

export class Rig {
  readonly options: RigOptions
  /** Histories, the sink and the logs. */
  readonly dir: string
  readonly history: History
  /** Straight to the server, for looking and for the faults themselves. */
  readonly admin: pg.Pool
  readonly #slots = new Map<string, Slot>()
  readonly #serverDir: string
  readonly #built: BuiltChild
  #server: EmbeddedServer
  #control!: ControlServer
  #isHealed = false
  #restarting: Promise<void> | undefined
  #clock: Promise<void> = Promise.resolve()

  private constructor(options: RigOptions, serverDir: string, server: EmbeddedServer, built: BuiltChild) {
    this.#built = built
    this.options = options
    this.#serverDir = serverDir
    this.#server = server
    this.dir = join(serverDir, 'history')
    mkdirSync(this.dir, { recursive: true })
    this.history = new History(this.dir, 'rig')
    this.admin = hardyPool({ url: server.url, name: 'torture admin', max: 8 })
  }

  static async open(options: RigOptions): Promise<Rig> {
    const serverDir = mkdtempSync(join(tmpdir(), 'pawl-torture-'))
    const [server, built] = await Promise.all([
      startEmbedded({ dir: join(serverDir, 'pg'), port: 0, database: 'torture', settings: serverSettings }),
      buildChild(),
    ])
    const rig = new Rig(options, serverDir, server, built)
    openRigs.add(rig)
    await migrate({
      url: server.url,
      pooler: 'none',
      connectTimeoutMs: 10_000,
      queryTimeoutMs: 60_000,
      applicationName: 'torture',
    })
    await rig.admin.query(readFileSync(join(here, 'audit.sql'), 'utf8'))
    await plantInDatabase(options.canary, (text) => rig.admin.query(text))
    plantInRig(options.canary)
    rig.#control = await ControlServer.open((request) => rig.#serve(request))
    return rig
  }

  // ---- processes

  /** Starts a worker process, and starts it again whenever it ends, until it is stopped. */
  async startWorker(
    slot: string,
    options: { faults?: readonly PlannedFault[]; keeperFaults?: readonly PlannedFault[]; concurrency?: number } = {},
  ): Promise<void> {
    const { faults = [], keeperFaults = [], concurrency = 8 } = options
    const proxy = await this.proxy()
    this.#slots.set(slot, { proxy, faults, keeperFaults, concurrency, child: undefined, starts: 0, isWanted: true })
    this.#spawn(slot)
  }

  async proxy(): Promise<FaultProxy> {
    return FaultProxy.open(this.#server.port)
  }

  urlThrough(proxy: FaultProxy): string {
    const url = new URL(this.#server.url)
    url.port = String(proxy.port)
    return url.href
  }

  /** An engine connection of the rig's own, for scenarios that play single statements. */
  connection(purpose: string): Connection {
    return new Connection(
      { url: this.#server.url, pooler: 'none', connectTimeoutMs: 5000, queryTimeoutMs: 10_000, applicationName: 'rig' },
      purpose,
    )
  }

  /** A Pawl of the rig's own, through a proxy, with the kinds of the storm. */
  pawl(proxy: FaultProxy, applicationName: string): Pawl {
    const pawl = createPawl({
      databaseUrl: this.urlThrough(proxy),
      applicationName,
      logger: silentLogger,
      connectTimeoutMs: 5000,
      queryTimeoutMs: 5000,
    })
    defineKinds(pawl)
    return pawl
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
    const child = spawn(process.execPath, [this.#built.main], {
      cwd: root,
      stdio: ['ignore', output, output],
      env: {
        ...process.env,
        ...childEnvironment({
          slot: name,
          start: slot.starts,
          dir: this.dir,
          url: this.urlThrough(slot.proxy),
          controlPort: this.#control.port,
          leaseMs: this.options.leaseMs,
          beatMs: this.options.beatMs,
          concurrency: slot.concurrency,
          faults: left(slot.faults, name),
          keeperFaults: left(slot.keeperFaults, `${name} keeper`),
          ...(this.options.canary === undefined ? {} : { canary: this.options.canary }),
        }),
      },
    })
    closeSync(output)
    slot.child = child
    child.on('exit', (code, signal) => {
      this.history.write('exit', { slot: name, start: slot.starts, code, signal })
      slot.child = undefined
      if (slot.isWanted) this.#spawn(name)
    })
  }

  /** Stops every worker in order; one that does not stop in time is killed and told of. */
  async stopWorkers(): Promise<string[]> {
    const late: string[] = []
    await Promise.all(
      [...this.#slots].map(async ([name, slot]) => {
        slot.isWanted = false
        if (slot.child === undefined) return
        slot.child.kill('SIGTERM')
        if (await this.#ended(slot, 15_000)) return
        late.push(name)
        slot.child?.kill('SIGKILL')
        await this.#ended(slot, 10_000)
      }),
    )
    return late
  }

  /** Ends one worker for good; says whether it stopped in order. */
  async stopWorker(name: string): Promise<boolean> {
    const slot = this.#slots.get(name)!
    slot.isWanted = false
    slot.child?.kill('SIGTERM')
    const isOrderly = await this.#ended(slot, 10_000)
    if (!isOrderly) {
      slot.child?.kill('SIGKILL')
      await this.#ended(slot, 10_000)
    }
    await slot.proxy.close()
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
      case 'restart':
        return this.restartServer()
      case 'commit-unknown':
        // Armed now; it happens with the next commit, so nobody waits for it here.
        void slot.proxy.loseNextCommit(request.purpose ?? 'engine').then((isLost) => {
          if (isLost) this.history.write('answer lost', { slot: slotName, purpose: request.purpose })
        })
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
    const deadline = performance.now() + this.options.leaseMs + (isLonely ? 1000 : 6000)
    try {
      while (performance.now() < deadline && !this.#isHealed) {
        await sleep(50)
        if (!isLonely && (await this.#isTakenOver(pid))) break
      }
    } finally {
      if (this.pidOf(slotName) === pid) process.kill(pid, 'SIGCONT')
    }
  }

  async #isTakenOver(pid: number): Promise<boolean> {
    const rows = await this.query<{ over: boolean }>(
      `select bool_and(w.closed_at is not null) and not exists (
         select from pawl.job j where j.state = 'running' and j.holder = any (array_agg(w.id))
       ) as over
       from pawl.worker w where w.pid = $1`,
      [pid],
    )
    return rows[0]?.over === true
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
    for (const { proxy } of this.#slots.values()) proxy.targetPort = this.#server.port
    if (this.#server.port !== port) throw new Error('The port of the server was taken while it was down.')
  }

  /** Moves database time by so much more. One transaction, so that nobody sees a time in between. */
  stepClock(ms: number): Promise<void> {
    this.#clock = this.#clock.then(async () => {
      await this.#transaction(async (client) => {
        await client.query('create table if not exists pawl.clock_shift (ms bigint not null)')
        await client.query('insert into pawl.clock_shift values ($1::bigint)', [Math.round(ms)])
        await client.query('insert into torture.step (ms) values ($1::bigint)', [Math.round(ms)])
        await client.query(
          `create or replace function pawl.now() returns timestamptz language sql volatile as
           'select clock_timestamp() + coalesce((select sum(ms) from pawl.clock_shift), 0) * interval ''1 millisecond'''`,
        )
      })
    })
    return this.#clock
  }

  async #unshiftClock(): Promise<void> {
    const rows = await this.query<{ ms: string | null }>(
      "select case when to_regclass('pawl.clock_shift') is null then '0' else 'ask' end as ms",
    )
    if (rows[0]?.ms === '0') return
    const [shift] = await this.query<{ ms: string }>('select coalesce(sum(ms), 0)::text as ms from pawl.clock_shift')
    if (Number(shift!.ms) !== 0) await this.stepClock(-Number(shift!.ms))
  }

  /** No more faults: paused processes go on, the server is up, the clock is right. */
  async heal(): Promise<void> {
    this.#isHealed = true
    this.#control.heal()
    for (const { proxy } of this.#slots.values()) proxy.disarm()
    await this.#restarting
    await this.#unshiftClock()
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
      await slot.proxy.close()
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

const serverSettings = { max_connections: '150', shared_buffers: '64MB', log_min_messages: 'fatal' }

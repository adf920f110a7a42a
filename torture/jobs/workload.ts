// What users and operators do during a storm: they enqueue, in transactions of their own and without, cancel, mend and retry what is dead,
// and now and then leave a transaction open. Each act and its answer is written down.

import { setTimeout as sleep } from 'node:timers/promises'
import { isPawlError, type Pawl } from 'pawl'
import type pg from 'pg'
import type { FaultProxy } from '../../packages/pawl/test/support/fault-proxy.ts'
import type { PlannedFault } from '../faults.ts'
import type { Plan } from '../plan.ts'
import { type Random, stream } from '../random.ts'
import type { Rig } from '../rig.ts'
import type { Traffic } from '../scenario.ts'
import { producerProcess, producerSlot } from './aims.ts'
import { Enqueuer } from './enqueuer.ts'
import type { Payload } from './kinds.ts'

const produceEveryMs = 70
const operateEveryMs = 90
/** Jobs that are enqueued meanwhile wait, so that a storm does not end as a backlog. */
const liveMax = 400

const weights: readonly [kind: string, weight: number][] = [
  ['tx', 5],
  ['shared', 5],
  ['complete', 4],
  ['outside', 4],
  ['flaky', 2],
  ['slow', 1],
  ['doomed', 1],
  ['snoozing', 1],
]

export class Workload implements Traffic {
  readonly #rig: Rig
  readonly #random: Random
  readonly #enqueuer: Enqueuer
  readonly #proxy: FaultProxy
  readonly #known: string[] = []
  /** Answers still to be lost: the next after so many enqueues without a transaction. */
  readonly #toLose: PlannedFault[]
  readonly #producerFaults: readonly PlannedFault[]
  #stop = new AbortController()
  #loops: Promise<void>[] = []
  #batch = 0
  #plain = 0

  private constructor(rig: Rig, plan: Plan, proxy: FaultProxy) {
    this.#rig = rig
    this.#proxy = proxy
    this.#random = stream(plan.seed, 'workload')
    this.#enqueuer = new Enqueuer({ url: proxy.url, name: 'producer', history: rig.history })
    this.#toLose = [...(plan.faults[producerSlot] ?? [])]
    this.#producerFaults = plan.faults[producerProcess] ?? []
  }

  static async open(rig: Rig, plan: Plan): Promise<Workload> {
    return new Workload(rig, plan, await rig.proxy())
  }

  get #pawl(): Pawl {
    return this.#enqueuer.pawl
  }

  async start(): Promise<void> {
    await this.#rig.startProcess(producerProcess, { role: 'producer', how: 'both', faults: this.#producerFaults })
    this.#loops = [
      this.#every(produceEveryMs, () => this.#produce()),
      this.#every(operateEveryMs, () => this.#operate()),
      this.#every(400, () => this.#leaveOpen()),
    ]
  }

  async stop(): Promise<void> {
    this.#stop.abort()
    await Promise.all([...this.#loops, this.#rig.stopProcess(producerProcess)])
  }

  async close(): Promise<void> {
    await this.#enqueuer.close()
    await this.#proxy.stop()
  }

  async #every(everyMs: number, work: () => Promise<void>): Promise<void> {
    const { signal } = this.#stop
    while (!signal.aborted) {
      await work()
      await sleep(everyMs, undefined, { signal }).catch(() => undefined)
    }
  }

  // ---- producing

  async #produce(): Promise<void> {
    const batch = ++this.#batch
    // A poison job every few seconds: each costs a process or two.
    const kind = batch % 180 === 40 ? 'poison' : weighted(this.#random)
    const count = kind === 'poison' || kind === 'slow' || kind === 'doomed' ? 1 : this.#random.whole(1, 8)
    const payloads = Array.from({ length: count }, (_, index) => this.#payload(`${batch}/${index}`, kind))
    const isOwn = this.#random.chance(0.6)
    const isRolledBack = isOwn && this.#random.chance(0.1)
    const [row] = await this.#rig.query<{ live: number }>("select count(*)::integer as live from pawl.job where state <> 'dead'")
    if (row!.live > liveMax) return
    if (isOwn) await this.enqueueOwn(String(batch), kind, payloads, isRolledBack)
    else await this.enqueuePlain(String(batch), kind, payloads)
  }

  #payload(key: string, kind: string): Payload {
    const ms = kind === 'slow' ? this.#random.whole(200, 800) : this.#random.chance(0.2) ? this.#random.whole(1, 40) : 0
    return kind === 'flaky' ? { key, failures: this.#random.whole(1, 2) } : { key, ms }
  }

  async enqueueOwn(key: string, kind: string, payloads: readonly Payload[], isRolledBack = false): Promise<void> {
    this.#known.push(...(await this.#enqueuer.enqueueOwn({ key, kind, payloads }, isRolledBack)))
  }

  async enqueuePlain(key: string, kind: string, payloads: readonly Payload[]): Promise<void> {
    const [next] = this.#toLose
    if (next !== undefined && ++this.#plain >= next.hit) {
      this.#toLose.shift()
      this.#plain = 0
      this.loseNextAnswer()
    }
    const ids = await this.#enqueuer.enqueuePlain({ key, kind, payloads })
    if (kind !== 'poison') this.#known.push(...ids)
  }

  /** The next enqueue without a transaction is committed, and its answer never arrives. */
  loseNextAnswer(): void {
    this.#rig.loseNextCommit(this.#proxy, producerSlot, 'caller')
  }

  // ---- operating

  async #operate(): Promise<void> {
    if (this.#random.chance(0.5)) await this.#mend()
    else if (this.#known.length > 0)
      await this.cancel(this.#known[this.#known.length - 1 - this.#random.whole(0, Math.min(11, this.#known.length - 1))]!)
  }

  async cancel(id: string): Promise<void> {
    this.#rig.history.write('cancel', { ph: 'invoke', job: id })
    try {
      const { was } = await this.#pawl.jobs.cancel(id, { reason: 'torture' })
      this.#rig.history.write('cancel', { ph: 'ok', job: id, was })
    } catch (error) {
      this.#rig.history.write('cancel', {
        ph: isPawlError(error, 'PAWL_WRONG_STATE') || isPawlError(error, 'PAWL_NOT_FOUND') ? 'fail' : 'info',
        job: id,
        error: String(error),
      })
    }
  }

  /** Finds a job that is dead because it was not mended, mends it, and gives it its attempts back. */
  async #mend(): Promise<void> {
    const [dead] = await this.#rig.query<{ id: string }>(
      "select id::text as id from pawl.job where state = 'dead' and kind = 'doomed' order by id limit 1",
    )
    if (dead === undefined || this.#random.chance(0.3)) return
    await this.#rig.query('insert into torture.mended values ($1::bigint)', [dead.id])
    this.#rig.history.write('retry', { ph: 'invoke', job: dead.id })
    try {
      await this.#pawl.jobs.retry(dead.id)
      this.#rig.history.write('retry', { ph: 'ok', job: dead.id })
    } catch (error) {
      this.#rig.history.write('retry', { ph: isPawlError(error, 'PAWL_WRONG_STATE') ? 'fail' : 'info', job: dead.id })
    }
  }

  /** A stranger's transaction that has a ready job locked for a while and then thinks better of it. */
  async #leaveOpen(): Promise<void> {
    const [ready] = await this.#rig.query<{ id: string }>(
      "select id::text as id from pawl.job where state = 'ready' order by due desc limit 1",
    )
    const until = performance.now() + 120
    if (ready !== undefined) await this.holdOpen(ready.id, () => performance.now() > until)
  }

  /** Meanwhile no claim may wait: they skip what is locked. */
  async holdOpen(id: string, isEnough: () => boolean): Promise<void> {
    let client: pg.PoolClient | undefined
    try {
      client = await this.#rig.admin.connect()
      await client.query('begin')
      await client.query('set local lock_timeout = 500')
      await this.#pawl.jobs.cancel(id, { tx: client })
      while (!isEnough()) {
        for (const waiting of await waitingClaims(this.#rig)) this.#rig.history.write('claim waits', { ...waiting, behind: id })
        await sleep(20)
      }
      await client.query('rollback')
      client.release()
    } catch {
      client?.release(true)
    }
  }
}

/** Asked outside the transaction that is left open: inside one, PostgreSQL shows the same picture of the sessions for ever. */
function waitingClaims(rig: Rig): Promise<{ application: string; event: string }[]> {
  return rig.query<{ application: string; event: string }>(
    `select a.application_name as application, a.wait_event as event
     from pg_stat_activity a
     where a.application_name like '% claim'
       and a.wait_event_type = 'Lock'
       and a.wait_event in ('transactionid', 'tuple')
       and a.query like '%picked as materialized%'`,
  )
}

function weighted(random: Random): string {
  let left = random.next() * weights.reduce((sum, [, weight]) => sum + weight, 0)
  for (const [kind, weight] of weights) {
    left -= weight
    if (left < 0) return kind
  }
  return 'tx'
}

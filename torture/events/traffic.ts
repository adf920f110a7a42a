// What users do during a storm of events: processes that append, a stranger who leaves transactions open, and whoever ends transactions that
// were prepared and forgotten. A scenario adds loops of its own.

import { setTimeout as sleep } from 'node:timers/promises'
import type { FaultProxy } from '../../packages/pawl/test/support/fault-proxy.ts'
import type { PlannedFault } from '../faults.ts'
import type { Plan } from '../plan.ts'
import { type Random, stream } from '../random.ts'
import type { Rig } from '../rig.ts'
import type { Traffic } from '../scenario.ts'
import { writerSlots } from './aims.ts'
import { transaction } from './transactions.ts'
import { Writer } from './writer.ts'

const strangerMs = 5000

export class EventTraffic implements Traffic {
  readonly rig: Rig
  readonly random: Random
  /** The rig's own. */
  readonly writer: Writer
  readonly #plan: Plan
  readonly #proxy: FaultProxy
  readonly #stop = new AbortController()
  readonly #loops: Promise<void>[] = []
  #strangers = 0

  protected constructor(rig: Rig, plan: Plan, proxy: FaultProxy) {
    this.rig = rig
    this.#plan = plan
    this.#proxy = proxy
    this.random = stream(plan.seed, 'workload')
    this.writer = new Writer({ url: proxy.url, name: 'rig', history: rig.history })
  }

  static async open(rig: Rig, plan: Plan): Promise<EventTraffic> {
    return new EventTraffic(rig, plan, await rig.proxy())
  }

  async start(): Promise<void> {
    for (const slot of writerSlots) await this.startWriter(slot, this.#plan.faults[slot])
    this.every(300, () => this.holdOpen())
    this.every(500, () => this.endPrepared(1500))
  }

  async startWriter(slot: string, faults: readonly PlannedFault[] = [], way = ''): Promise<void> {
    await this.rig.startProcess(slot, { role: 'writer', how: `${this.#plan.seed}${way === '' ? '' : ` ${way}`}`, faults })
  }

  async stop(): Promise<void> {
    this.#stop.abort()
    await Promise.all([...this.#loops, ...writerSlots.map((slot) => this.rig.stopProcess(slot))])
    await this.endPrepared(0)
  }

  async close(): Promise<void> {
    await this.writer.close()
    await this.#proxy.stop()
  }

  every(everyMs: number, work: () => Promise<void>): void {
    const { signal } = this.#stop
    const loop = async () => {
      while (!signal.aborted) {
        await work()
        await sleep(everyMs, undefined, { signal }).catch(() => undefined)
      }
    }
    this.#loops.push(loop())
  }

  /**
   * A stranger's transaction is open while somebody else appends and commits. Two windows of the sequencer later at the most the event has its
   * position: the second of them began after the commit. Until then the stranger does not go.
   */
  async holdOpen(): Promise<void> {
    const client = await this.rig.admin.connect().catch(() => undefined)
    if (client === undefined) return
    try {
      await client.query('begin')
      await client.query('select pg_current_xact_id()')
      const { token } = await this.writer.write(
        transaction(`stranger/${++this.#strangers}`, this.random.pick(['stranger1', 'stranger2']), 1),
      )
      const xid = token?.split(':')[0]
      if (xid !== undefined) await this.#seePosition(xid)
      await client.query('rollback')
      client.release()
    } catch {
      client.release(true)
    }
  }

  async #seePosition(xid: string): Promise<void> {
    const [before] = await this.rig.query<{ n: string }>('select coalesce(max(n), 0) as n from torture.tick')
    const look = async () => {
      const [row] = await this.rig.query<{ windows: number; isThere: boolean }>(
        `select (select count(*)::integer from torture.tick t where t.n > $2::bigint) as windows,
           exists (select from pawl.log_page p where p.tenant = '' and p.last_position > (select max(l.last_position) - 2000 from pawl.log_page l)
             and $1::xid8 = any (p.xids)) as "isThere"`,
        [xid, before!.n],
      )
      return row!
    }
    for (const deadline = performance.now() + strangerMs; performance.now() < deadline && !this.#stop.signal.aborted; ) {
      const { windows, isThere } = await look()
      if (isThere || windows >= 3) {
        this.rig.history.write('stranger', { xid, isThere, windows })
        return
      }
      await sleep(20)
    }
  }

  /** Whoever prepared a transaction may be dead: half of them are committed, half are rolled back. */
  async endPrepared(afterMs: number): Promise<void> {
    const forgotten = await this.rig.query<{ gid: string }>(
      "select gid from pg_prepared_xacts where prepared < clock_timestamp() - $1 * interval '1 millisecond'",
      [afterMs],
    )
    for (const { gid } of forgotten) {
      const verb = gid.length % 2 === 0 ? 'commit' : 'rollback'
      await this.rig.admin.query(`${verb} prepared '${gid}'`).catch(() => undefined)
    }
  }
}

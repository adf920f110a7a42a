// What users do during a storm of projections, beside appending: they wait until they see what they wrote, and look at tables and checkpoints at
// any moment.

import { isPawlError } from 'pawl'
import { defineProjection } from '../../packages/pawl/src/projections/definition.ts'
import { register } from '../../packages/pawl/src/projections/register.ts'
import { EventTraffic } from '../events/traffic.ts'
import { transaction } from '../events/transactions.ts'
import type { Plan } from '../plan.ts'
import type { Rig } from '../rig.ts'
import { operatorSlot } from './aims.ts'
import { copiedName, folded, foldedName, shardedName } from './handlers.ts'
import { observe } from './observe.ts'

const lastReadMs = 20_000
const lastReads = new WeakMap<Rig, () => Promise<void>>()

/** In a storm that is all faults nobody may have seen anything: after healing somebody writes and reads once more. */
export async function readOnceMore(rig: Rig): Promise<void> {
  const read = lastReads.get(rig)
  lastReads.delete(rig)
  for (let time = 0; read !== undefined && time < 3; time++) await read()
}

export class ProjectionTraffic extends EventTraffic {
  readonly #faults: Plan['faults']
  #reads = 0

  private constructor(rig: Rig, plan: Plan, proxy: Awaited<ReturnType<Rig['proxy']>>) {
    super(rig, plan, proxy)
    this.#faults = plan.faults
  }

  static override async open(rig: Rig, plan: Plan): Promise<ProjectionTraffic> {
    // Of generations that are new to the database the highest would be live, and processes define all of them.
    const connection = rig.connection('register')
    await register(connection, rig.database, [defineProjection('', foldedName, folded(undefined, 1))])
    await connection.close()
    return new ProjectionTraffic(rig, plan, await rig.proxy())
  }

  override async start(): Promise<void> {
    await super.start()
    await this.rig.startProcess(operatorSlot, { role: 'operator', faults: this.#faults[operatorSlot] ?? [] })
    this.every(150, () => this.observe())
    for (let reader = 0; reader < 3; reader++) this.every(100, () => this.readOwnWrite(8000))
  }

  override async stop(): Promise<void> {
    lastReads.set(this.rig, () => this.readOwnWrite(lastReadMs))
    await Promise.all([super.stop(), this.rig.stopProcess(operatorSlot)])
  }

  /** Tables and checkpoints in one snapshot, as any reader may see them. */
  async observe(): Promise<void> {
    for (const seen of await observe((text) => this.rig.query(text))) this.rig.history.write('observed', { ...seen })
  }

  /** Writes, waits until it is seen, looks. */
  async readOwnWrite(timeoutMs: number): Promise<void> {
    // Keys of its own: it is not about waiting for other writers.
    const key = this.random.pick(['reader1', 'reader2', 'reader3', 'reader4'])
    const name = this.random.pick([foldedName, shardedName, copiedName])
    const { token, last } = await this.writer.write(transaction(`read/${++this.#reads}`, key, this.random.whole(1, 3)))
    if (token === undefined) return
    const n = last.get(key)!
    try {
      await this.writer.pawl.projections.seen(name, token, { timeout: timeoutMs })
    } catch (error) {
      this.rig.history.write('seen', { ph: isPawlError(error, 'PAWL_PARKED') ? 'fail' : 'info', name, key, error: String(error) })
      return
    }
    const [row] = await this.rig.query<{ isThere: boolean }>(
      name !== copiedName
        ? `select exists (
             select from torture.applied a join pawl.projection p on p.name = a.name and p.live_generation = a.generation
             where a.name = '${name}' and a.key = $1 and a.n = $2
           ) as "isThere"`
        : 'select exists (select from torture.copied c where c.key = $1 and c.n >= $2) as "isThere"',
      [key, n],
    )
    this.rig.history.write('seen', { ph: 'ok', name, key, n, isThere: row!.isThere })
  }
}

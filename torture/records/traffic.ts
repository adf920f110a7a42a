// What goes on around the workers of a storm: two processes of users, an operator who mends what failed and resumes it, cancels jobs and takes
// over uploads that hang, and a reader who looks at any moment.

import { setTimeout as sleep } from 'node:timers/promises'
import type { FaultProxy } from '../../packages/pawl/test/support/fault-proxy.ts'
import type { PlannedFault } from '../faults.ts'
import { readHistory } from '../history.ts'
import type { Plan } from '../plan.ts'
import { type Random, stream } from '../random.ts'
import type { Rig } from '../rig.ts'
import type { Traffic } from '../scenario.ts'
import { Actor } from './actor.ts'
import { clients } from './aims.ts'
import { bulkPlace, type Marked, type Place, places, type SetName } from './sets.ts'

const operateEveryMs = 100
const readEveryMs = 30
/** An upload that has not moved for so long is sent again by somebody else; whoever still sends it is refused. */
const hangsMs = 1200

interface Failed {
  readonly id: string
  readonly revision: number
}

export class RecordsTraffic implements Traffic {
  readonly actor: Actor
  readonly #rig: Rig
  readonly #proxy: FaultProxy
  readonly #seed: number
  readonly #faults: Readonly<Record<string, readonly PlannedFault[]>>
  readonly #random: Random
  readonly #reading: Random
  readonly #numbers = new Map<string, string[]>()
  readonly #stop = new AbortController()
  #loops: Promise<void>[] = []

  private constructor(rig: Rig, plan: Plan, proxy: FaultProxy) {
    this.#rig = rig
    this.#proxy = proxy
    this.#seed = plan.seed
    this.#faults = plan.faults
    this.#random = stream(plan.seed, 'operator')
    this.#reading = stream(plan.seed, 'reader')
    this.actor = new Actor({ url: proxy.url, name: 'rig.1', history: rig.history })
  }

  static async open(rig: Rig, plan: Plan): Promise<RecordsTraffic> {
    return new RecordsTraffic(rig, plan, await rig.proxy())
  }

  async start(): Promise<void> {
    for (const slot of clients)
      await this.#rig.startProcess(slot, { role: 'client', how: `storm ${this.#seed}`, faults: this.#faults[slot] ?? [] })
    this.#loops = [
      this.#every(operateEveryMs, () => this.#operate()),
      this.#every(readEveryMs, () => this.#look()),
      this.#every(400, () => this.#takeOverUploads()),
    ]
  }

  async stop(): Promise<void> {
    this.#stop.abort()
    await Promise.all([...this.#loops, ...clients.map((slot) => this.#rig.stopProcess(slot))])
    for (const place of [...places, bulkPlace]) await this.freeSlot(place)
  }

  async close(): Promise<void> {
    await this.actor.close()
    await this.#proxy.stop()
  }

  async #every(everyMs: number, work: () => Promise<void>): Promise<void> {
    const { signal } = this.#stop
    while (!signal.aborted) {
      await work().catch((error: unknown) => this.#rig.history.write('turn failed', { error: String(error) }))
      await sleep(everyMs, undefined, { signal }).catch(() => undefined)
    }
  }

  // ---- operating

  async #operate(): Promise<void> {
    const draw = this.#random.next()
    if (draw < 0.03) return this.#cancelOne()
    const [failed] = await this.#rig.query<Failed>(
      `select u.id::text as id, u.revision from pawl.submission u
       join pawl.record_scope s on s.tenant = u.tenant and s.id = u.scope_id
       where u.state = 'failed' order by u.baseline = s.revision desc, u.submitting_at desc limit 1`,
    )
    if (failed === undefined) return
    if (draw < 0.8) await this.mend(failed.id)
    // Two people at once with the same view of it: one of them is too late.
    const times = this.#random.chance(0.3) ? 2 : 1
    await Promise.all(Array.from({ length: times }, () => this.actor.resume(failed.id, failed.revision)))
  }

  /** From now on the database takes the rows of this submission. */
  async mend(id: string): Promise<void> {
    await this.#rig.query(
      `insert into torture.mended
       select distinct r.data ->> 'mark' from pawl.submission_row r where r.submission = $1::bigint and r.data ->> 'mark' ~ '[!?]$'`,
      [id],
    )
  }

  /** A person cancels the job that applies a submission, as they may with any job. Whoever wants the slot next ends the submission. */
  async #cancelOne(): Promise<void> {
    const [found] = await this.#rig.query<{ job: string }>(
      "select job_id::text as job from pawl.submission where state = 'submitting' order by id desc limit 1",
    )
    if (found !== undefined) await this.cancel(found.job)
  }

  async cancel(job: string): Promise<void> {
    this.#rig.history.write('cancel', { ph: 'invoke', job })
    const was = await this.actor.pawl.jobs.cancel(job, { reason: 'torture' }).catch((error: unknown) => String(error))
    this.#rig.history.write('cancel', { ph: typeof was === 'string' ? 'fail' : 'ok', job, was })
  }

  /** A slot whose job is gone is freed by who wants it next; a sweep looks every ten seconds. */
  async freeSlot(at: Place): Promise<void> {
    const [orphan] = await this.#rig.query<{ id: string }>(
      `select u.id::text as id from pawl.submission u
       join pawl.record_scope s on s.tenant = u.tenant and s.id = u.scope_id
       where u.state = 'submitting' and s.record_set = $1::text and s.scope = $2::text
         and not exists (select from pawl.job j where j.tenant = u.tenant and j.id = u.job_id and j.state <> 'dead')`,
      [at.set, JSON.stringify([at.place])],
    )
    if (orphan === undefined) return
    const upload = await this.actor.upload({ key: `free ${orphan.id}`, at, rows: [['k0000', `free ${orphan.id}`]] })
    if (upload?.state === 'validated') await this.actor.submit(upload.id, upload.revision)
  }

  /** Sends an upload that hangs, under its own id. Its first sender, if it is still there, is refused. */
  async #takeOverUploads(): Promise<void> {
    const hanging = await this.#rig.query<{ id: string; name: string; set: SetName; scope: string }>(
      `select u.id::text as id, u.name, u.record_set as set, s.scope from pawl.submission u
       join pawl.record_scope s on s.tenant = u.tenant and s.id = u.scope_id
       where u.state in ('uploading', 'validating', 'upload-failed')
         and (select max(c.at) from torture.change c where c.submission = u.id) < clock_timestamp() - $1::integer * interval '1 millisecond'
       limit 3`,
      [hangsMs],
    )
    if (hanging.length === 0) return
    const asked = readHistory(this.#rig.dir).filter((entry) => entry.op === 'upload' && entry.ph === 'invoke')
    for (const { id, name, set, scope } of hanging) {
      const entry = asked.find((each) => each.key === name)
      const place = (JSON.parse(scope) as string[])[0]!
      if (entry === undefined || entry.isBad === true) continue
      const upload = await this.actor.upload({ key: name, at: { set, place }, rows: entry.rows as Marked[], restart: id })
      if (upload?.state === 'validated') await this.actor.submit(upload.id, upload.revision)
    }
  }

  // ---- reading

  async #look(): Promise<void> {
    const random = this.#reading
    const at = random.chance(0.02) ? bulkPlace : random.pick(places)
    const known = this.#numbers.get(at.place) ?? []
    const draw = random.next()
    const seen =
      draw < 0.25 && known.length > 0
        ? await this.actor.read(at, { asOf: random.pick(known) })
        : await this.actor.read(at, draw < 0.6 ? { pageRows: 17, pauseMs: random.whole(0, 15) } : {})
    if (seen !== undefined && seen.number !== '0' && known.at(-1) !== seen.number)
      this.#numbers.set(at.place, [...known, seen.number])
  }
}

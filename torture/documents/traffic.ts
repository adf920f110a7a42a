// The types of a storm; what a user of documents can do; the processes that refresh and write.

import { setTimeout as sleep } from 'node:timers/promises'
import { type Document, type DocumentTypeOptions, isPawlError, type Written } from 'pawl'
import type pg from 'pg'
import { type Random, stream } from '../plan.ts'
import { Caller, type CallerOptions, inTransaction, rollBack } from '../pool.ts'
import type { Subject } from '../process.ts'
import { Traffic } from '../scenario.ts'

// ---- types

type Options = DocumentTypeOptions & { readonly references?: Readonly<Record<string, string>> }

export const types = {
  School: { identity: ['schoolId'], keyChange: 'cascade' },
  Session: { identity: ['name', 'school'], references: { school: 'School' }, keyChange: 'cascade' },
  Offering: { identity: ['code', 'session'], references: { session: 'Session', teacher: 'Person' }, keyChange: 'cascade' },
  Period: { identity: ['period', 'school'], references: { school: 'School' }, keyChange: 'cascade' },
  Section: {
    identity: ['sectionId', 'offering'],
    references: { offering: 'Offering', 'periods[].is': 'Period' },
    unify: [['offering.schoolId', 'periods[].is.schoolId']],
    keyChange: 'cascade',
  },
  Person: { identity: ['first', 'last'], keyChange: 'cascade', oldKeys: '1s' },
} satisfies Record<string, Options>

export type TypeName = keyof typeof types
/** A rename of a person changes bodies and no key. */
const names: readonly TypeName[] = [...(Object.keys(types) as TypeName[]), 'Person', 'Person']

/** Values that collide often. */
const values: Readonly<Record<string, readonly (string | number)[]>> = {
  ...{ schoolId: [1, 2, 3, 4], name: ['Fall', 'Spring', 'Summer'], code: ['a', 'b', 'c'], period: ['p', 'q', 'r'] },
  ...{ sectionId: ['x', 'y', 'z'], first: ['a', 'a|b', 'e', 'f'], last: ['c', 'b|c', 'd'] },
}

const targets: Partial<Record<TypeName, TypeName>> = {
  Session: 'School',
  Period: 'School',
  Offering: 'Session',
  Section: 'Offering',
}

/** The scalars of its key that a document holds itself. */
export const scalarsOf = (type: TypeName): string[] => types[type].identity.filter((path) => path in values)

/** Each body has a mark of its own: what is stored names the write. */
export type Body = Readonly<Record<string, unknown>> & { readonly mark: string }

// ---- what a user can do

export interface Write {
  readonly verb: 'post' | 'put' | 'delete'
  readonly type: TypeName
  readonly uuid?: string
  readonly body?: Body
  readonly ifMatch?: string
  readonly receipt?: string
}

/** 'all': by putAll. 'own': in a transaction of the caller's own. */
export type Way = 'plain' | 'all' | 'own' | 'rolled back'

/** What came of each write: an answer or a refusal. */
export type Told = Partial<Pick<Written, 'uuid' | 'outcome' | 'etag'>> & { readonly code?: string; readonly details?: object }

export class User extends Caller {
  constructor(options: CallerOptions) {
    super(options)
    for (const [name, type] of Object.entries(types)) this.pawl.documents.define(name, type as Options)
  }

  async write(writes: readonly Write[], way: Way = 'plain', openMs = 0): Promise<readonly Told[]> {
    const asked = writes.map(({ body, ...rest }) => ({ ...rest, mark: body?.mark }))
    const send = () => this.#send(writes, way, openMs)
    return (await this.history.call('write', { writes: asked, way }, send, (told) => ({ told }))).answer ?? []
  }

  async post(type: TypeName, body: Body, receipt?: string): Promise<Told> {
    return (await this.write([{ verb: 'post', type, body, ...(receipt && { receipt }) }]))[0] ?? {}
  }

  async put(type: TypeName, uuid: string, body: Body, ifMatch?: string): Promise<Told> {
    return (await this.write([{ verb: 'put', type, uuid, body, ...(ifMatch && { ifMatch }) }]))[0] ?? {}
  }

  async receipt(): Promise<string | undefined> {
    const draw = () => this.pawl.documents.receipt()
    return (await this.history.call('receipt', { begin: Date.now() }, draw, (receipt) => ({ receipt }))).answer
  }

  async #send(writes: readonly Write[], way: Way, openMs: number): Promise<readonly Told[]> {
    if (way === 'all') return (await this.pawl.documents.putAll(writes as never)).map(answerOf)
    if (way === 'plain') return [await this.#one(writes[0]!)]
    const inOwn = async (tx: pg.PoolClient) => {
      const told: Told[] = []
      for (const write of writes) told.push(await this.#one(write, tx))
      await sleep(openMs)
      return told
    }
    return way === 'own' ? inTransaction(this.pool, inOwn) : inTransaction(this.pool, inOwn, rollBack)
  }

  /** A refusal writes nothing, and a transaction goes on after it. */
  async #one({ verb, type, uuid, body, ...rest }: Write, tx?: pg.PoolClient): Promise<Told> {
    const { documents } = this.pawl
    const options = { ...rest, ...(tx && { tx }) }
    try {
      if (verb === 'post') return answerOf(await documents.post(type, body!, options))
      if (verb === 'put') return answerOf(await documents.put(type, uuid!, body!, options))
      await documents.delete(type, uuid!, options)
      return {}
    } catch (error) {
      if (!isPawlError(error) || error.status >= 500) throw error
      return { code: error.code, details: error.details }
    }
  }
}

const answerOf = ({ uuid, outcome, etag }: Written): Told => ({ uuid, outcome, etag })

// ---- processes

export async function worker(subject: Subject): Promise<void> {
  const { leaseMs: lease, beatMs } = subject.options
  const user = new User(subject.caller(2))
  await subject.serve(
    user.pawl,
    { acquired: 'cursor.acquired' },
    () => user.pawl.worker({ name: subject.proc, lease, tuning: { beatMs, pollMs: 150 } }),
    (runner) => runner.stop().then(() => user.close()),
  )
}

export const refreshName = 'pawl.documents'
const loops = 3
/** With this many events to work on no write is sent, so that a storm does not end as a backlog. */
const backlogMax = 200

/** A process that only writes, several at once. It meets its faults between the two statements of a write. */
export async function writer(subject: Subject): Promise<void> {
  const user = new User(subject.caller(6))
  const start = (loop: number) => {
    const author = new Author(user, stream(Number(subject.options.how), `${subject.proc} ${loop}`), `${subject.proc}/${loop}`)
    return subject.every(
      () => author.random.whole(5, 60),
      () => author.turn(),
    )
  }
  await subject.live(() => Array.from({ length: loops }, (_, loop) => start(loop)), user)
}

type Found = { readonly type: TypeName } & Document<Body>

/** One after the other: reads what is there, and draws the next write from it. */
export class Author {
  readonly random: Random
  readonly #user: User
  readonly #name: string
  #turn = 0
  #last: Write | undefined

  constructor(user: User, random: Random, name: string) {
    this.#user = user
    this.random = random
    this.#name = name
  }

  async turn(): Promise<void> {
    const { random } = this
    const user = this.#user
    this.#turn++
    if (await this.#isBehind()) return
    const kind = random.weighted({ post: 34, change: 40, swap: 6, remove: 6, again: 8, late: 6 })
    if (kind === 'swap') return this.#swap()
    if (kind === 'late') return this.#late()
    const write = await this.#draw(kind)
    if (write === undefined) return
    const isOwn = random.chance(0.3)
    const more = isOwn && random.chance(0.5) ? await this.#draw('post', '+') : undefined
    const way = isOwn ? (random.chance(0.15) ? 'rolled back' : 'own') : 'plain'
    const [told] = await user.write(more === undefined ? [write] : [write, more], way, isOwn ? random.whole(1, 60) : 0)
    if (write.verb === 'post' && told?.outcome !== undefined) this.#last = write
  }

  async plant(type: TypeName): Promise<void> {
    this.#turn++
    const body = await this.#body(type)
    if (body !== undefined) await this.#user.post(type, body)
  }

  async #isBehind(): Promise<boolean> {
    const { rows } = await this.#user.pool.query<{ n: number }>(
      `select (s.position - c.position)::integer as n from pawl.cursor_at c, pawl.sequencer s where c.name = $1 order by s.n desc limit 1`,
      [refreshName],
    )
    return (rows[0]?.n ?? 0) > backlogMax
  }

  async #draw(kind: 'post' | 'change' | 'remove' | 'again', more = ''): Promise<Write | undefined> {
    const { random } = this
    // The same body once more: it changes nothing, unless what it names is another document by now.
    if (kind === 'again') return this.#last
    const type = random.pick(names)
    if (kind === 'post') {
      const body = await this.#body(type, more)
      return body && { verb: 'post', type, body }
    }
    const found = await this.#any(type)
    if (found === undefined) return undefined
    const at = { type, uuid: found.uuid, ...(random.chance(0.4) ? { ifMatch: found.etag } : {}) }
    if (kind === 'remove') return { verb: 'delete', ...at }
    return { verb: 'put', ...at, body: await this.#changed(found) }
  }

  /** A note, a rename, or a re-point: its references move, and its own scalars stay. */
  async #changed({ type, body }: Found): Promise<Body> {
    const { random } = this
    const how = type === 'Person' ? 'rename' : random.weighted({ note: 4, rename: 4, 're-point': 2 })
    const field = random.pick(scalarsOf(type))
    if (how === 'rename') return { ...body, mark: this.#mark(), [field]: random.pick(values[field]!) }
    const drawn = how === 're-point' ? await this.#body(type) : undefined
    const own = Object.fromEntries(scalarsOf(type).map((name) => [name, body[name]]))
    return { ...body, ...drawn, ...own, mark: this.#mark() }
  }

  /** Two sessions of a school change places. */
  async #swap(): Promise<void> {
    const a = await this.#any('Session')
    const b = a && (await this.#any('Session', a.key.schoolId))
    if (a === undefined || b === undefined || a.uuid === b.uuid) return
    const put = (to: Found, from: Found, n: string): Write => {
      const body = { ...to.body, name: from.body.name, mark: this.#mark(n) }
      return { verb: 'put', type: 'Session', uuid: to.uuid, body, ...(this.random.chance(0.3) ? { ifMatch: to.etag } : {}) }
    }
    await this.#user.write([put(a, b, 'a'), put(b, a, 'b')], 'all')
  }

  /** A request that arrived before another one, and is written after it. */
  async #late(): Promise<void> {
    const found = await this.#any(this.random.pick(names))
    const receipt = await this.#user.receipt()
    if (found === undefined || receipt === undefined) return
    const { type, uuid, body } = found
    await this.#user.put(type, uuid, { ...body, mark: this.#mark('sooner') })
    await this.#user.write([{ verb: 'put', type, uuid, body: { ...body, mark: this.#mark('late') }, receipt }])
  }

  async #body(type: TypeName, more = ''): Promise<Body | undefined> {
    const { random } = this
    const own = Object.fromEntries(scalarsOf(type).map((name) => [name, random.pick(values[name]!)]))
    const body = { ...own, mark: this.#mark(more) }
    const target = targets[type]
    if (target === undefined) return body
    const found = await this.#any(target)
    if (found === undefined) return undefined
    const teacher = type === 'Offering' ? await this.#any('Person') : undefined
    const referring = { ...body, [target.toLowerCase()]: found.key, ...(teacher && { teacher: teacher.key }) }
    if (type !== 'Section') return referring
    const is = random.chance(0.7) ? (await this.#any('Period', found.key.schoolId))?.key : undefined
    return { ...referring, periods: is === undefined ? [] : [{ is }, { is }].slice(random.whole(0, 1)) }
  }

  /** Any document, or one of a school; more often one that others refer to. */
  async #any(type: TypeName, schoolId?: unknown): Promise<Found | undefined> {
    const { rows } = await this.#user.pool.query<{ uuid: string }>(
      `select uuid from pawl.document d where type = $1 and ($2::text is null or keys -> type ->> 'schoolId' = $2::text)
       order by $3::boolean and exists (select from pawl.document_ref r where r.to_id = d.id) desc, random() limit 1`,
      [type, schoolId === undefined ? null : String(schoolId), this.random.chance(0.6)],
    )
    return rows[0] && ((await this.#user.pawl.documents.get<Body>(type, rows[0].uuid)) as Found | undefined)
  }

  #mark(more = ''): string {
    return `${this.#name}/${this.#turn}${more}`
  }
}

// ---- around them

export const writers = ['s1', 's2']
const planted = 4

export class DocumentsTraffic extends Traffic {
  readonly user = new User(this.caller)

  async start(): Promise<void> {
    const author = new Author(this.user, this.random, 'rig')
    // Renames have something to reach from the first moment on.
    for (const type of Array.from({ length: planted }, () => names).flat()) await author.plant(type)
    for (const slot of writers) await this.startUsers(slot, { role: 'writer', how: String(this.plan.seed) })
    this.every(40, () => author.turn())
  }
}

// One of the users of a storm, who does one thing after the other.

import { setTimeout as sleep } from 'node:timers/promises'
import { type Random, stream } from '../random.ts'
import type { Actor, UploadAsked } from './actor.ts'
import { bulkPlace, bulkRows, isDoomed, keyOf, keysMax, type Marked, type Place, places } from './sets.ts'

/** Keys that single puts go to: few, so that they meet. */
const putKeys = 8

export class User {
  readonly random: Random
  readonly #actor: Actor
  readonly #name: string
  /** Files with a row that the database refuses, to be sent again without it. */
  readonly #doomed: UploadAsked[] = []
  readonly #superseded: string[] = []
  #turn = 0

  constructor(actor: Actor, name: string, seed: number) {
    this.#actor = actor
    this.#name = name
    this.random = stream(seed, `user ${name}`)
  }

  async act(what: string): Promise<void> {
    this.#turn++
    const { random } = this
    const at = random.pick(places)
    switch (what) {
      case 'restart':
        return this.#sendFile(at, true)
      case 'upload':
        return this.#sendFile(random.pick([at, bulkPlace]))
      case 'submit':
        return this.#sendFile(at)
      case 'put':
        return this.#put(at, false)
      case 'append':
        return this.#append(at)
    }
    const draw = random.next()
    if (draw < 0.02) return this.#sendFile(bulkPlace)
    if (draw < 0.45) return this.#sendFile(at)
    if (draw < 0.68) return this.#put(at, random.chance(0.3))
    if (draw < 0.8) return this.#append(at)
    return draw < 0.9 ? this.#sendMended() : this.#rebase()
  }

  get #key(): string {
    return `${this.#name}/${this.#turn}`
  }

  /** A file with most of the rows of a place: some are as they are, some are new, now and then one is refused by the database. */
  async #sendFile(at: Place, breaksOff = this.random.chance(0.04)): Promise<void> {
    const seen = await this.#actor.read(at)
    if (seen === undefined) return
    const rows = this.#rowsFor(at, seen.marks)
    const isBad = this.random.chance(0.04)
    const asked: UploadAsked = { key: this.#key, at, rows, format: this.random.pick(['csv', 'ndjson', 'json']), isBad, breaksOff }
    if (rows.some(([, mark]) => isDoomed(mark))) this.#doomed.push(asked)
    await this.send(asked)
  }

  #rowsFor(at: Place, marks: ReadonlyMap<string, string>): Marked[] {
    const { random } = this
    const key = this.#key
    if (at.set === 'bulk') return Array.from({ length: bulkRows }, (_, index) => [keyOf(index), index % 3 === 0 ? key : '0'])
    const share = random.pick([0.3, 0.8, 1])
    const chosen = Array.from({ length: keysMax }, (_, index) => keyOf(index)).filter(() => random.chance(share))
    const rows = chosen.map((rowKey): Marked => [rowKey, random.chance(0.35) ? (marks.get(rowKey) ?? key) : key])
    // Late in the file, so that chunks are written before it is refused.
    if (rows.length > 0 && random.chance(0.25)) rows[rows.length - 1] = [rows.at(-1)![0], `${key}${random.pick(['!', '?'])}`]
    return rows.length > 0 ? rows : [[keyOf(0), key]]
  }

  async send(asked: UploadAsked): Promise<void> {
    const upload = await this.#actor.upload(asked)
    if (upload?.state !== 'validated') return
    if (this.random.chance(0.3)) await this.#actor.preview(upload)
    await this.#submit(upload.id, upload.revision)
  }

  /** Somebody else may have the slot: they try again for a moment, as people do. */
  async #submit(id: string, revision: number): Promise<void> {
    for (let tried = 0; tried < 3; tried++) {
      if (await this.#actor.submit(id, revision)) {
        if (this.random.chance(0.4)) await this.#actor.ended(id, 2000)
        return
      }
      const now = await this.#actor.pawl.records.get(id).catch(() => undefined)
      if (now?.state === 'superseded') this.#superseded.push(id)
      if (now?.state !== 'validated') return
      await sleep(this.random.whole(20, 120))
    }
  }

  /** Now and then somebody else puts on top of the same version at the same moment. */
  async #put(at: Place, isOwn: boolean): Promise<void> {
    const key = keyOf(this.random.whole(0, putKeys - 1))
    const number = await this.#actor.numberOf(at, key)
    if (number === undefined) return
    const times = this.random.chance(0.4) ? 2 : 1
    await Promise.all(Array.from({ length: times }, (_, one) => this.#actor.put(at, key, `${this.#key}.${one}`, number, isOwn)))
  }

  async #append(at: Place): Promise<void> {
    const first = this.random.whole(0, keysMax - 6)
    const rows = Array.from({ length: this.random.whole(1, 6) }, (_, index): Marked => {
      return [keyOf(first + index), this.random.chance(0.2) ? null : this.#key]
    })
    await this.#actor.append(at, this.#key, rows)
  }

  /** The same file without the row that is refused. Its marks are those of the file that failed, or is failing at this very moment. */
  async #sendMended(): Promise<void> {
    const asked = this.#doomed.pop()
    if (asked === undefined) return
    await this.send({ ...asked, key: this.#key, isBad: false, rows: asked.rows.filter(([, mark]) => !isDoomed(mark)) })
  }

  async #rebase(): Promise<void> {
    const id = this.#superseded.pop()
    const made = id === undefined ? undefined : await this.#actor.rebase(id)
    if (made?.state === 'validated') await this.#submit(made.id, made.revision)
  }
}

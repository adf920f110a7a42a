// What the verbs of documents run on: the types of this process, the pool, limits.

import type { Pool } from '../db/driver.ts'
import { PawlError, shown } from '../errors.ts'
import { refused } from '../kernel/options.ts'
import type { Projections } from '../projections/index.ts'
import { compileModel, type DefinedType, type Model, type ModelType } from './model.ts'
import { refreshName, refreshOptions } from './refresh.ts'

export class Registry {
  readonly pool: Pool
  readonly payloadBytesMax: number
  /** Tenants for which this process has stored its definitions. */
  readonly kept = new Set<string>()
  readonly #projections: Projections
  readonly #defined = new Map<string, DefinedType>()
  #model: Model | undefined

  constructor(pool: Pool, payloadBytesMax: number, projections: Projections) {
    this.pool = pool
    this.#projections = projections
    this.payloadBytesMax = payloadBytesMax
  }

  define(type: DefinedType): void {
    const call = `documents.define('${type.name}')`
    if (this.#defined.has(type.name))
      throw new PawlError('PAWL_KIND_DEFINED_TWICE', `The type '${type.name}' is already defined. Define each type once.`)
    if (this.#model !== undefined) throw refused(call, 'the model is frozen since the first verb. Define every type before it')
    if (this.#defined.size === 0) this.#projections.define(refreshName, refreshOptions)
    this.#defined.set(type.name, type)
  }

  /** Frozen by the first verb. */
  get model(): Model {
    this.#model ??= compileModel(this.#defined)
    return this.#model
  }

  /** A handle, or its name. */
  typeOf(verb: string, given: unknown): ModelType {
    const name = typeof given === 'object' && given !== null ? (given as { name?: unknown }).name : given
    const type = this.model.get(name as string)
    if (type === undefined)
      throw refused(
        `documents.${verb}`,
        `type must be one that this Pawl defines, got ${shown(name)}. Call documents.define first`,
      )
    return type
  }
}

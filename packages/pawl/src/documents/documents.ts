// The verbs of documents.

import { statement } from '../db/statement.ts'
import { currentTenant } from '../kernel/handler.ts'
import { read } from '../kernel/retry.ts'
import { defineType } from './model.ts'
import type { Registry } from './registry.ts'
import type { DocumentType, DocumentTypeOptions } from './types.ts'

const receiptStatement = statement(import.meta.url, 'next-receipt')

/** Documents of one tenant. `pawl.documents` is that of the job whose handler calls it, else the empty one; `pawl.for('acme').documents` cannot name another's. */
export class Documents {
  readonly #registry: Registry
  readonly #given: string | undefined

  constructor(registry: Registry, tenant: string | undefined) {
    this.#registry = registry
    this.#given = tenant
  }

  get #tenant(): string {
    return this.#given ?? currentTenant()
  }

  /** Declares a type. All types of a process are declared before its first other verb. */
  define<Body = unknown>(type: string, options: DocumentTypeOptions<Body>): DocumentType<Body> {
    this.#registry.define(defineType(type, options as DocumentTypeOptions<never>))
    return { name: type }
  }

  /** A number of the database for a request that has arrived: of two writes without ifMatch the one with the later receipt wins. */
  async receipt(): Promise<string> {
    const [row] = await read<{ receipt: string }>(this.#registry.pool, receiptStatement)
    return row!.receipt
  }
}

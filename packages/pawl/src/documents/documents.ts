// The verbs of documents.

import { type AnyTx, toTx } from '../db/adapters.ts'
import { statement } from '../db/statement.ts'
import { assertOutsideTx } from '../events/append.ts'
import { currentTenant } from '../kernel/handler.ts'
import { type InTx, resolve } from '../kernel/options.ts'
import type { Page } from '../kernel/pages.ts'
import { read } from '../kernel/retry.ts'
import { defineType } from './model.ts'
import { deleteTable, getTable, listTable, manyTable, referrersTable, verifyTable, writeTable } from './options.ts'
import { checkUuid, countDependents, listDocuments, listReferrers, listTypes, type Reading, readDocument } from './reads.ts'
import type { Registry } from './registry.ts'
import type {
  Change,
  DeleteOptions,
  Dependents,
  Document,
  DocumentType,
  DocumentTypeDescription,
  DocumentTypeOptions,
  Key,
  ListDocumentsOptions,
  Outcome,
  Referrers,
  ReferrersOptions,
  VerifyOptions,
  VerifyReport,
  WriteOptions,
  Written,
} from './types.ts'
import { verifyDocuments } from './verify.ts'
import { deleteDocument, writeDocument } from './write.ts'
import { postMany, putAll } from './write-many.ts'

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

  /** Writes a document by its key: a new one, or the one that has this key. */
  async post<Body>(type: DocumentType<Body> | string, body: Body, options: WriteOptions = {}): Promise<Written> {
    const { tx, ...conditions } = resolve('documents.post', writeTable, options)
    return writeDocument(this.#writing('post', tx), this.#registry.typeOf('post', type), body, conditions)
  }

  /** The same for up to 10,000, each by itself: one that is refused is an outcome, and the others are written. */
  async postMany<Body>(type: DocumentType<Body> | string, bodies: readonly Body[], options: InTx = {}): Promise<Outcome[]> {
    const { tx } = resolve('documents.postMany', manyTable, options)
    return postMany(this.#writing('postMany', tx), this.#registry.typeOf('postMany', type), bodies)
  }

  /** Writes an existing document. What a changed key means is up to its type. */
  async put<Body>(type: DocumentType<Body> | string, uuid: string, body: Body, options: WriteOptions = {}): Promise<Written> {
    const { tx, ...conditions } = resolve('documents.put', writeTable, options)
    const given = { ...conditions, uuid: checkUuid('put', uuid) }
    return writeDocument(this.#writing('put', tx), this.#registry.typeOf('put', type), body, given)
  }

  /** Writes up to 100 existing documents, all or none. Their keys may change places; references are by the keys before. */
  async putAll(changes: readonly Change[], options: InTx = {}): Promise<Written[]> {
    const { tx } = resolve('documents.putAll', manyTable, options)
    return putAll(this.#writing('putAll', tx), changes)
  }

  /** Deletes a document that no other refers to. */
  async delete(type: DocumentType | string, uuid: string, options: DeleteOptions = {}): Promise<void> {
    const { tx, ifMatch } = resolve('documents.delete', deleteTable, options)
    const found = this.#registry.typeOf('delete', type)
    return deleteDocument(this.#writing('delete', tx), found, checkUuid('delete', uuid), ifMatch)
  }

  /** A document by its UUID or by its key, with the current keys of what it refers to. Old keys answer while their type allows it. */
  async get<Body>(
    type: DocumentType<Body> | string,
    uuidOrKey: string | Key,
    options: InTx = {},
  ): Promise<Document<Body> | undefined> {
    const { tx } = resolve('documents.get', getTable, options)
    const found = await readDocument(this.#reading(tx), this.#registry.typeOf('get', type), uuidOrKey)
    return found as Document<Body> | undefined
  }

  /** A page of the documents of a type, and of types that extend it, oldest first. */
  async list<Body>(type: DocumentType<Body> | string, options: ListDocumentsOptions = {}): Promise<Page<Document<Body>>> {
    const given = resolve('documents.list', listTable, options)
    const page = await listDocuments(this.#reading(given.tx), this.#registry.typeOf('list', type), given)
    return page as Page<Document<Body>>
  }

  /** A page of the documents that refer to one: as long as there are any, it cannot be deleted. Counts up to 10,000 references. */
  async referrers(type: DocumentType | string, uuid: string, options: ReferrersOptions = {}): Promise<Referrers> {
    const given = resolve('documents.referrers', referrersTable, options)
    return listReferrers(this.#reading(given.tx), this.#registry.typeOf('referrers', type), uuid, given)
  }

  /** How many documents a rename would reach, by level and type. Counts up to 100,000. */
  async dependents(type: DocumentType | string, uuid: string): Promise<Dependents> {
    return countDependents(this.#reading(undefined), this.#registry.typeOf('dependents', type), uuid)
  }

  /** Recomputes a page of what is stored and reports what differs. What still waits for its refresh is reported as old. */
  async verify(options: VerifyOptions = {}): Promise<VerifyReport> {
    return verifyDocuments(this.#reading(undefined), resolve('documents.verify', verifyTable, options))
  }

  /** The types as they are stored. */
  async types(): Promise<DocumentTypeDescription[]> {
    return listTypes(this.#reading(undefined))
  }

  #writing(verb: string, tx: AnyTx | undefined): Reading {
    if (tx === undefined) assertOutsideTx(`documents.${verb}`)
    // A projection's is refused before anything is read or stored.
    else toTx(tx)
    return this.#reading(tx)
  }

  #reading(tx: AnyTx | undefined): Reading {
    return { registry: this.#registry, tenant: this.#tenant, tx }
  }
}

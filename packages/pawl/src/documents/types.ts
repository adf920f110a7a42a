// The shapes of documents that users see.

import type { StandardSchema } from '../jobs/types.ts'
import type { InTx } from '../kernel/options.ts'
import type { Page } from '../kernel/pages.ts'

/** A part of a key: it has no parts itself. */
export type KeyValue = string | number | boolean

/** A flat key: the scalars that a type names itself, and those of the documents that its identity refers to. */
export type Key = Readonly<Record<string, KeyValue>>

/** What a PUT that changes the key means. */
export type KeyChange = 'refuse' | 'ignore' | 'cascade'

export interface ReferenceOptions {
  /** The type of the target, or a superclass of it. */
  readonly type: string
  /** Other names for fields of the target's key in the key of this type: `{ schoolId: 'homeSchoolId' }`. Only for references of the identity. */
  readonly as?: Readonly<Record<string, string>>
}

export interface SuperOptions {
  readonly type: string
  /** What fields of this type's key are called in the superclass: `{ schoolId: 'educationOrganizationId' }`. */
  readonly as?: Readonly<Record<string, string>>
}

export interface DocumentTypeOptions<Body = unknown> {
  /** Paths of scalars of the body such as 'sectionIdentifier' or 'name.first', and of references. */
  readonly identity: readonly string[]
  /** By path, such as 'schoolReference' or 'classPeriods[].classPeriodReference': the type of the target. */
  readonly references?: Readonly<Record<string, string | ReferenceOptions>>
  /** Pairs of paths that must lead to the same document: 'courseOfferingReference.schoolId' and 'classPeriods[].classPeriodReference.schoolId'. */
  readonly unify?: readonly (readonly [string, string])[]
  readonly extends?: SuperOptions
  /** Only an identity for others to extend: nothing can be posted. */
  readonly abstract?: boolean
  /** What a PUT that changes the key means. Default 'refuse'. A document follows renames of what it refers to in any case. */
  readonly keyChange?: KeyChange
  /** How long an old key still answers reads. Default: not at all. */
  readonly oldKeys?: number | string
  /** Checked before anything is written; the body is stored as the schema returns it. */
  readonly schema?: StandardSchema<Body, unknown>
}

/** What `define` returns, for the verbs. */
export interface DocumentType<Body = unknown> {
  readonly name: string
  /** For the compiler only. */
  readonly body?: Body
}

export interface WriteOptions extends InTx {
  /** An etag, or '*': any, as long as the document is there. */
  readonly ifMatch?: string
  /** Only if there is no such document yet. */
  readonly ifNoneMatch?: '*'
  /** Of `receipt()`: when the request arrived. Default: now. */
  readonly receipt?: string
}

export interface DeleteOptions extends InTx {
  readonly ifMatch?: string
}

export interface Written {
  readonly uuid: string
  readonly outcome: 'created' | 'updated' | 'unchanged'
  /** The document answers to another key than before. */
  readonly isKeyChanged: boolean
  readonly etag: string
  readonly key: Key
}

/** Of one body of `postMany`. */
export type Outcome = ({ readonly ok: true } & Written) | { readonly ok: false; readonly error: Error }

/** One document of `putAll`. */
export interface Change {
  readonly type: DocumentType | string
  readonly uuid: string
  readonly body: unknown
  readonly ifMatch?: string
}

export interface Document<Body = unknown> {
  readonly uuid: string
  readonly type: string
  /** Changes with every write of the document and every rename of what it refers to. */
  readonly etag: string
  readonly key: Key
  /** SHA-256 of type and key, as events carry it. */
  readonly keyHash: string
  readonly body: Body
  readonly createdAt: Date
  readonly changedAt: Date
  /** It was found by a key that it no longer has. */
  readonly byOldKey: boolean
}

export interface ListDocumentsOptions extends InTx {
  /** By path: a scalar of the body, or the key (or the only part of it) that a reference has. */
  readonly where?: Readonly<Record<string, KeyValue | Key>>
  readonly after?: string
  readonly limit?: number
}

export interface ReferrersOptions extends InTx {
  /** `next` of the previous page. Default: the first page. */
  readonly after?: string
  /** The maximum number of references to list. Default 100. */
  readonly limit?: number
}

/** A document that refers to another, and where. */
export interface Referrer {
  readonly type: string
  readonly uuid: string
  readonly path: string
}

/** A page of them, and the count of all. */
export interface Referrers extends Page<Referrer> {
  readonly count: number
  /** false: there are more than `count`. */
  readonly isComplete: boolean
}

/** What a rename reaches: documents whose bodies or keys have the key of this one in them. */
export interface Dependents {
  readonly levels: readonly { readonly depth: number; readonly type: string; readonly count: number }[]
  readonly isComplete: boolean
}

export interface VerifyOptions {
  readonly type?: string
  readonly after?: string
  readonly limit?: number
}

export interface Fault {
  readonly type: string
  readonly uuid: string
  readonly fault: string
}

export interface VerifyReport {
  readonly checked: number
  readonly next: string | null
  readonly faults: readonly Fault[]
}

/** A type as it is stored. */
export interface DocumentTypeDescription {
  readonly name: string
  readonly changedAt: Date
  readonly definition: Readonly<Record<string, unknown>>
}

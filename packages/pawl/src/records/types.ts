// Public types of records; no logic.

import type { StandardSchema } from '../jobs/types.ts'
import type { InTx } from '../kernel/options.ts'
import type { Page } from '../kernel/pages.ts'
import type { HeaderCheck } from './formats/tabular.ts'
import type { SourceRow } from './rows/reader.ts'
import type { RecordTypes, RowTypes, UnknownColumns } from './rows/row-types.ts'

export type ColumnType = 'text' | 'number' | 'integer' | 'boolean' | 'date' | 'timestamp' | 'json'

/** What a cell of this column must be. Its value becomes one canonical form before it is compared or hashed. */
export interface Column {
  readonly type: ColumnType
  readonly required?: boolean
  /** Of numbers. Give a string where a JavaScript number would round. */
  readonly min?: number | string
  readonly max?: number | string
  /** The maximum number of decimal places of a number. */
  readonly scale?: number
  /** Of strings, as are pattern, charsMax and trim. */
  readonly oneOf?: readonly string[]
  readonly pattern?: RegExp
  readonly charsMax?: number
  /** false: spaces around a string are part of it. */
  readonly trim?: boolean
  /** Of dates: how a file writes them besides 2026-01-31, such as 'dd/mm/yyyy' or 'mm.dd.yyyy'. */
  readonly format?: string
}

/** A record's data: strings, booleans, and numbers as strings of their decimal value. */
export type RecordData = Readonly<Record<string, unknown>>

export interface RecordTypeOptions {
  /** The column that names a row within its scope and type, or several of them. */
  readonly key: string | readonly string[]
  readonly columns: Readonly<Record<string, ColumnType | Column>>
  /** For what columns cannot say. It sees the coerced row; what it gives back is stored. */
  readonly schema?: StandardSchema
}

export type MissingPolicy = 'reject' | 'keep' | 'tombstone'

export interface RecordSetOptions<Types extends RecordTypes = RecordTypes, Unknown extends UnknownColumns = UnknownColumns> {
  /** The names of what makes a scope, such as ['organisation', 'registration']. */
  readonly scope: readonly string[]
  /** Names of attributes of a scope, each of which is set once and cannot change, such as ['accreditation']. */
  readonly attributes?: readonly string[]
  readonly types: Types
  /** Which column names the type of a row, when there are several. Default 'type'. In a workbook each sheet may be named after its type instead. */
  readonly typeColumn?: string
  /** What becomes of records that a submission leaves out. Default 'keep'. */
  readonly missing?: MissingPolicy
  /** What becomes of columns that are not declared. Default 'reject'. */
  readonly unknownColumns?: Unknown
  readonly schemaVersion?: number
  /** A word about each row that is stored with its version, such as 'included'. A row whose word changed has changed. */
  readonly classify?: (row: { readonly type: string; readonly key: string; readonly data: RecordData }) => string | null
  /** 'submission': one event per commit. 'record': also one per changed record. Default 'submission'. */
  readonly events?: 'none' | 'submission' | 'record'
  readonly retry?: {
    readonly attempts?: number
    readonly initialMs?: number
    readonly maxMs?: number
    readonly jitter?: boolean
  }
  /** Formats besides CSV, NDJSON and JSON, such as `[xlsx()]` of 'pawl/records/xlsx'. */
  readonly formats?: readonly FileFormat[]
  readonly limits?: UploadLimits
  /** How long submissions that were not submitted are kept. */
  readonly keep?: KeepOptions
  readonly tuning?: RecordSetTuning
}

interface UploadLimits {
  /** Default 1 GiB. */
  readonly bytesMax?: number
  /** Data rows of an upload; with one more it is invalid, 'too-many-rows'. Default 2,000,000. */
  readonly rowsMax?: number
}

interface KeepOptions {
  /** Default 7d. */
  readonly validated?: number | string
  /** After its last batch. Default 1h. */
  readonly uploading?: number | string
  /** All others. Default 1d. */
  readonly ended?: number | string
}

/** Settings that are rarely needed. */
interface RecordSetTuning {
  /** Changes that are applied in one transaction; what a crash can lose. Default 5000. */
  readonly chunkRows?: number
  /** Characters of one row, without its line break. Default 1,000,000. */
  readonly rowCharsMax?: number
  /** Row errors that are stored; all are counted. Default 1000. */
  readonly errorsMax?: number
}

/** Reads files of one format. Get one from a subpath of this package. */
export interface FileFormat {
  readonly name: 'xlsx'
  /** Of the file's bytes, in place of limits.bytesMax. */
  readonly limit: { readonly name: string; readonly bytesMax: number }
  read(file: UploadedFile): AsyncIterable<readonly SourceRow[]>
}

export interface UploadedFile {
  readonly chunks: AsyncIterable<Uint8Array>
  readonly rowCharsMax: number
  /** The types of the record set. */
  readonly types: ReadonlySet<string>
  /** Reports a sheet that is not read. */
  ignore(sheet: string): void
  /** Throws when no row under this header could be one of the set. */
  readonly checkHeader: HeaderCheck
}

export interface RecordSet<Rows extends RowTypes = RowTypes> {
  readonly name: string
  /** For the compiler alone: the types of its rows. */
  readonly rows?: Rows
}

/** A record set as data, for processes that do not define it. */
export interface RecordSetDescription {
  readonly name: string
  readonly schemaVersion: number
  readonly scope: readonly string[]
  readonly attributes: readonly string[]
  readonly typeColumn: string
  readonly missing: MissingPolicy
  /** Of each type its key, and the JSON Schema of a row as it is sent. */
  readonly types: Readonly<
    Record<string, { readonly key: readonly string[]; readonly schema: Readonly<Record<string, unknown>> }>
  >
}

export type ScopeKey = Readonly<Record<string, string>>
export type Format = 'csv' | 'ndjson' | 'json' | 'xlsx'
export type FailureClass = 'permanent' | 'transient' | 'unknown' | 'cancelled'
/** A stream, or the content itself; a string is content and never a path. */
export type Body = AsyncIterable<Uint8Array | string> | Iterable<Uint8Array | string> | Uint8Array | string

export interface UploadOptions {
  /** 'xlsx' needs `formats: [xlsx()]` of the record set. */
  readonly format: Format
  /** The separator of CSV cells: one character, such as ';' or a tab. Default ','. */
  readonly delimiter?: string
  /** The decimal sign of numbers in a CSV. Default '.'. With ',' a point in an uploaded number is an error. */
  readonly decimal?: '.' | ','
  readonly attributes?: Readonly<Record<string, string>>
  /** The name of the file, for people. */
  readonly name?: string
  readonly by?: string
  /** The size and digest that the sender declares; any other upload is truncated or damaged. */
  readonly expect?: { readonly bytes?: number; readonly sha256?: string }
  /** Starts an upload over that stopped: its id. */
  readonly restart?: string
  readonly signal?: AbortSignal
  readonly onProgress?: (progress: { readonly id: string; readonly lines: number; readonly bytes: number }) => void
}

export type SubmissionState =
  | 'uploading'
  | 'validating'
  | 'validated'
  | 'invalid'
  | 'upload-failed'
  | 'submitting'
  | 'submitted'
  | 'superseded'
  | 'failed'

export interface Submission {
  readonly id: string
  readonly set: string
  readonly scope: ScopeKey
  readonly origin: 'upload' | 'rebase' | 'put' | 'append'
  readonly state: SubmissionState
  readonly revision: number
  /** The scope's revision that this was compared with. */
  readonly baseline: number
  /** The number of its versions, once it has one. */
  readonly number: string | null
  readonly format: string | null
  readonly name: string | null
  readonly by: string | null
  readonly rebasedFrom: string | null
  /** Sheets of its workbook that were not read: none of the set's types has exactly their name. */
  readonly ignoredSheets: readonly string[]
  readonly counts: SubmissionCounts
  readonly progress: SubmissionProgress
  readonly jobId: string | null
  readonly failureClass: FailureClass | null
  readonly error: string | null
  readonly createdAt: Date
  readonly submittingAt: Date | null
  readonly endedAt: Date | null
  readonly expiresAt: Date | null
}

export interface SubmissionCounts {
  readonly rows: number
  readonly created: number
  readonly updated: number
  readonly unchanged: number
  /** Records that it leaves out; with the policy 'tombstone' each is deleted by it. */
  readonly missing: number
  readonly deleted: number
  /** Rows that are not valid, by what they would have done. */
  readonly invalid: { readonly created: number; readonly updated: number; readonly unkeyed: number }
  readonly errors: number
}

export interface SubmissionProgress {
  readonly bytes: number
  readonly rows: number
  /** Changes written so far, of this many. */
  readonly applied: number
  readonly of: number
}

export type RowKind = 'created' | 'updated' | 'unchanged' | 'missing' | 'invalid'

export interface PreviewRow {
  readonly line: number | null
  readonly type: string
  readonly key: string
  readonly before: RecordData | null
  /** null: it would be deleted; or the row is invalid, and its data is not kept. */
  readonly after: RecordData | null
  /** None of an invalid row: records.errors() says what is wrong with it. */
  readonly changes: readonly FieldChange[]
}

export interface FieldChange {
  readonly field: string
  readonly before?: unknown
  readonly after?: unknown
}

export interface RowError {
  readonly line: number
  readonly code: string
  readonly column: string | null
  readonly value: string | null
  readonly reason: string
}

export interface PageOptions {
  readonly limit?: number
  /** `next` of the last page. */
  readonly after?: string
}

/** As-of: a pinned number, a submission's id, or a time. */
export type At = { readonly number: string } | { readonly submission: string } | { readonly time: Date }

export interface RecordVersion<Data = RecordData> {
  readonly type: string
  readonly key: string
  readonly number: string
  readonly status: 'CREATED' | 'UPDATED' | 'DELETED'
  readonly submission: string
  readonly schemaVersion: number
  readonly classification: string | null
  readonly changed: readonly string[] | null
  /** null: deleted, or erased. */
  readonly data: Data | null
  readonly isErased: boolean
}

export interface AppendRow {
  readonly type?: string
  /** Needed to delete; otherwise it is read from the data. */
  readonly key?: string
  /** null deletes. */
  readonly data: object | null
}

interface WriteOptions extends InTx {
  readonly by?: string
  readonly attributes?: Readonly<Record<string, string>>
  /** A key that makes the write happen once in its scope. A repeat within 30 days returns the first result. */
  readonly once?: string
}

export interface PutOptions extends WriteOptions {
  /** Write only if the record's current version has this number; '0': only if there is none. */
  readonly number?: string
}

export interface AppendOptions extends WriteOptions {
  /** Append only if the scope is still at this revision. */
  readonly revision?: number
}

export interface AppendAnswer {
  readonly submission: string | null
  /** The scope's committed number now. */
  readonly number: string
  readonly created: number
  readonly updated: number
  readonly deleted: number
  readonly unchanged: number
}

export interface CancelSubmissionOptions {
  /** The reason, stored in the audit and as the submission's error. */
  readonly reason: string
  readonly by?: string
}

export interface SubmitOptions extends InTx {
  /** Submit only if it is still at this revision. */
  readonly revision?: number
}

export type { Page }

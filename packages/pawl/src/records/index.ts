// Public names of records.
export type { ExportOptions } from './formats/export.ts'
export type { HistoryEntry, ListRecordsOptions, VersionDiff } from './reads.ts'
export { Records } from './records.ts'
export type { RecordTypes, RowsOf, RowTypes } from './rows/row-types.ts'
export { type AuditReport, RecordScope, type ScopeState } from './scope.ts'
export type { SubmissionWhy } from './submissions.ts'
export type { SubmitAnswer } from './submit.ts'
export type * from './types.ts'

// Public names of records.
export type { HistoryEntry, VersionDiff } from './reads.ts'
export { Records } from './records.ts'
export type { PutRowOf, RowsOf, RowTypes } from './rows/row-types.ts'
export { type AuditReport, RecordScope, type ScopeState } from './scope.ts'
export type { SubmissionWhy } from './submissions.ts'
export type { SubmitAnswer } from './submit.ts'
export type {
  AppendAnswer,
  Column,
  ColumnType,
  FileFormat,
  Format,
  PreviewRow,
  RecordData,
  RecordSet,
  RecordSetDescription,
  RecordSetOptions,
  RecordVersion,
  RowError,
  Submission,
} from './types.ts'

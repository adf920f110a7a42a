// Public names of documents.
export { Documents } from './documents.ts'
export type {
  Dependents,
  Document,
  DocumentType,
  DocumentTypeDescription,
  DocumentTypeOptions,
  Fault,
  Key,
  KeyValue,
  ListDocumentsOptions,
  Outcome,
  Referrer,
  Referrers,
  VerifyReport,
  WriteOptions,
  Written,
} from './types.ts'

// Public names of batches.
export { Batches } from './batches.ts'
export type { BatchPage } from './reads.ts'
export type {
  Allowance,
  Batch,
  BatchItem,
  BatchKind,
  BatchOptions,
  BatchReport,
  BatchState,
  BatchWhy,
  Item,
  ItemToRestore,
  NewItem,
  Started,
  StartOptions,
  StuckItem,
  Sums,
  TrackPolicy,
} from './types.ts'

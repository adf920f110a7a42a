// Public names of batches.
export { Batches } from './batches.ts'
export type {
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
  StuckItem,
  TrackPolicy,
} from './types.ts'

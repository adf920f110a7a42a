// Public names of batches.

export type { Page as BatchPage } from '../kernel/pages.ts'
export { Batches } from './batches.ts'
export type {
  Allowance,
  Batch,
  BatchHandlers,
  BatchItem,
  BatchKind,
  BatchOptions,
  BatchReport,
  BatchState,
  BatchWhy,
  Item,
  ItemHandler,
  ItemToRestore,
  NewItem,
  Started,
  StartOptions,
  StuckItem,
  Sums,
  TrackPolicy,
} from './types.ts'

// Public names of batches.

export type { Page as BatchPage } from '../kernel/pages.ts'
export { Batches } from './batches.ts'
export type {
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
  StuckItem,
  TrackPolicy,
} from './types.ts'

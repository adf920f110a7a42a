// Public names of projections.
export { expectRows } from './fenced.ts'
export { Projections } from './projections.ts'
export type {
  Comparison,
  CursorStatus,
  LogProjectionOptions,
  ParkedKey,
  ProjectionContext,
  ProjectionTx,
  ReactionOptions,
  RefreshContext,
  SinkContext,
  SinkOptions,
  StateProjectionOptions,
} from './types.ts'

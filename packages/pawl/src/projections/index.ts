export { expectRows } from './fenced.ts'
export { Projections } from './projections.ts'
export type * from './types.ts'

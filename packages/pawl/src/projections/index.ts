export { expectRows } from './expect-rows.ts'
export { Projections } from './projections.ts'
export type { Token } from './seen.ts'
export type * from './types.ts'

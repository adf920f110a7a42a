export { expectRows } from './expect-rows.ts'
export { Projections } from './projections.ts'
export type { SeenOptions, Token } from './seen.ts'
export type * from './types.ts'

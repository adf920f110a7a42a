// What tools around Pawl import from 'pawl/admin': its schema and migrations, what its errors and states are. Applications do not need it.

export { classify, type ErrorClass } from '../db/classify.ts'
export { exportSql, migrate, readMigrations } from '../db/migrate.ts'
export { readSchema, releasedSchema, type SchemaClient, type SchemaShape } from '../db/schema.ts'
export { describeError, errorTable } from '../errors.ts'
export { finalStates, openStates } from '../jobs/states.ts'
export { durationMs } from '../kernel/clock.ts'
export { release } from '../release.ts'

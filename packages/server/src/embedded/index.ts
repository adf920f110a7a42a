/** A real PostgreSQL for development and tests, run from npm's binaries. The README beside this file says how and why. */
export { EmbeddedError, type EmbeddedErrorCode } from './errors.ts'
export { startEmbedded } from './start.ts'
export type { EmbeddedOptions, EmbeddedServer } from './types.ts'

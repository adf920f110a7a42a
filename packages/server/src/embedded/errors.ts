/** A closed list: callers branch on the code, people read the message. */
export type EmbeddedErrorCode =
  | 'bad_option'
  | 'no_binaries'
  | 'binaries_do_not_run'
  | 'no_cache_place'
  | 'no_account'
  | 'no_data_place'
  | 'not_writable'
  | 'locked'
  | 'not_a_data_directory'
  | 'other_major'
  | 'data_owner'
  | 'password_missing'
  | 'password_refused'
  | 'initdb_failed'
  | 'no_free_port'
  | 'start_failed'
  | 'not_answering'
  | 'stop_failed'

/** Every message says what happened, why, and what to do next, in that order. */
export class EmbeddedError extends Error {
  override readonly name = 'EmbeddedError'
  readonly code: EmbeddedErrorCode

  constructor(code: EmbeddedErrorCode, message: string, options?: ErrorOptions) {
    super(message, options)
    this.code = code
  }
}

/** The `code` of a Node or PostgreSQL error, or undefined for anything else that was thrown. */
export function codeOf(error: unknown): string | undefined {
  if (typeof error !== 'object' || error === null || !('code' in error)) return undefined
  return typeof error.code === 'string' ? error.code : undefined
}

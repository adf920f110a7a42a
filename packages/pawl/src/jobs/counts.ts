// What a worker has counted since it started.

import { isConflict, isRetryable } from '../db/classify.ts'

export class Counts {
  claimed = 0
  started = 0
  done = 0
  failed = 0
  dead = 0
  timedOut = 0
  rescued = 0
  released = 0
  refused = 0
  touches = 0
  /** 40001, 40P01 and 55P03 that our own statements met; refused writes are counted apart. */
  conflicts = 0
  retries = 0
  /** Errors of our own statements and loops that no repetition mends. */
  errors = 0
  settles = 0

  error(error: unknown): void {
    if (isConflict(error)) this.conflicts++
    if (isRetryable(error)) this.retries++
  }
}

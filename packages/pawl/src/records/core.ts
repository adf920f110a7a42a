// What every part of records works with: the database, the sets, and the jobs that carry its work.

import type { Logger } from '../config.ts'
import type { Pool } from '../db/driver.ts'
import type { Jobs } from '../jobs/index.ts'
import type { Ends } from './ends.ts'
import type { DefinedSet } from './sets.ts'
import type { Sweep } from './sweep.ts'

export interface RecordsCore {
  readonly pool: Pool
  readonly sets: Map<string, DefinedSet>
  /** Sets whose description this process has stored. */
  readonly kept: Set<string>
  readonly jobs: (tenant: string) => Jobs
  /** Of this process, whoever waits in it. */
  readonly ends: Ends
  /** Of this process, for all tenants. */
  readonly sweep: Sweep
  readonly logger: Pick<Logger, 'error'>
}

/** For a statement over all rows of a submission, of which there may be millions: a quarter of an hour. */
export const wholeMs = 15 * 60_000

/**
 * For a transaction whose writes no reader sees before a later one commits, which does wait for the disk: a crash of the server loses the end of its
 * log, so it never loses this and keeps that. The work that goes on after a crash must notice what is lost.
 */
export const inert = { settings: 'set local synchronous_commit = off' }

// What the loops of a runner share: connections, the pool of handlers, and where news goes.

import type { Config } from '../config.ts'
import type { Connection, Pool } from '../db/driver.ts'
import type { Events } from '../kernel/events.ts'
import type { LoopWatch } from '../kernel/failures.ts'
import type { ProjectionEvents } from './types.ts'

export interface World {
  readonly config: Config
  /** Reads of the log. */
  readonly reader: Connection
  /** Short writes and look-ups under a fence. */
  readonly engine: Connection
  /** Handlers' transactions. */
  readonly pool: Pool
  /** Resets a session behind a handler's transaction. */
  readonly reset: string
  /** The server ends a handler's transaction that idles for so long: a stopped process must not keep its cursor's row. */
  readonly idleMs: (timeoutMs: number) => number
  /** Tells the keeper thread that a handler runs: one that blocks this thread past its time gives up the process's lease. Gives what ends it. */
  readonly watch: (name: string, timeoutMs: number) => () => void
  readonly events: Events<ProjectionEvents>
  readonly installation: () => string
  /** How often an idle cursor asks whether a person has put it elsewhere; a notification comes too. */
  readonly idleLookMs: () => number
  /** Entities of a state projection became dirty. */
  readonly onRefreshable: () => void
  readonly loop: (name: string) => LoopWatch
  /** What ends by itself, or is a user's own: a conflict, a hook that threw. */
  readonly onTrouble: (error: unknown) => void
}

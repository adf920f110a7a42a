// createPawl(): one value that has everything, for one database.

import { type Config, type PawlOptions, resolveConfig } from './config.ts'
import { createPool, type Pool } from './db/driver.ts'
import { type MigrateReport, migrate } from './db/migrate.ts'
import type { JobEvents } from './jobs/index.ts'
import { Jobs } from './jobs/index.ts'
import type { DefinedKind } from './jobs/kinds.ts'
import { type Alert, listAlerts } from './kernel/alerts.ts'
import { Events } from './kernel/events.ts'

export interface Tenant {
  readonly tenant: string
  readonly jobs: Jobs
  /** Open alerts, newest first. */
  alerts(): Promise<Alert[]>
}

export class Pawl implements Tenant {
  readonly tenant = ''
  readonly config: Config
  readonly jobs: Jobs
  readonly #pool: Pool
  readonly #events: Events<JobEvents>
  readonly #kinds = new Map<string, DefinedKind>()

  constructor(options: PawlOptions) {
    this.config = resolveConfig(options)
    this.#events = new Events<JobEvents>((error) =>
      this.config.logger.error({ error: String(error) }, 'an event listener failed'),
    )
    this.#pool = createPool(this.config.database, 'caller', this.config.callerConnectionsMax)
    this.jobs = this.#jobs('')
  }

  /** The same for one tenant: nothing that this handle does can name another's rows. */
  for(tenant: string): Tenant {
    const jobs = this.#jobs(tenant)
    return { tenant, jobs, alerts: () => listAlerts(this.#pool, tenant) }
  }

  /** Brings the database's schema up to this release. Any number of processes may call it at once. */
  async migrate(options: { onStep?: (name: string) => void } = {}): Promise<MigrateReport> {
    return migrate(this.config.direct, options)
  }

  on<Name extends keyof JobEvents>(name: Name, listener: (event: JobEvents[Name]) => void): () => void {
    return this.#events.on(name, listener)
  }

  async alerts(): Promise<Alert[]> {
    return listAlerts(this.#pool, '')
  }

  /** Closes the callers' pool. Stop workers first. */
  async close(): Promise<void> {
    if (!this.#pool.ended) await this.#pool.end()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close()
  }

  #jobs(tenant: string): Jobs {
    return new Jobs({ config: this.config, kinds: this.#kinds, events: this.#events, pool: this.#pool }, tenant)
  }
}

export function createPawl(options: PawlOptions): Pawl {
  return new Pawl(options)
}

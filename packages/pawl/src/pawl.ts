// createPawl(): one value that has everything, for one database.

import { batchesVerbs } from './batches/batches.ts'
import type { DefinedBatch } from './batches/definition.ts'
import { Finisher } from './batches/finish.ts'
import { Batches } from './batches/index.ts'
import type { Config, PawlOptions } from './config.ts'
import { borrowPool, createPool, type Pool } from './db/driver.ts'
import { type MigrateReport, migrate } from './db/migrate.ts'
import { Documents } from './documents/index.ts'
import { Registry } from './documents/registry.ts'
import type { AppendCore } from './events/append.ts'
import { EventLog, TenantEvents } from './events/index.ts'
import { Jobs, type Kind } from './jobs/index.ts'
import { type DefinedKind, hasHandler } from './jobs/kinds.ts'
import { jobEvents } from './jobs/outcomes.ts'
import type { JobEvents } from './jobs/types.ts'
import { type Alert, listAlerts } from './kernel/alerts.ts'
import { Events } from './kernel/events.ts'
import { check, refused, resolve } from './kernel/options.ts'
import { type AlertsOptions, alertsTable, resolveConfig, tenantName } from './pawl-options.ts'
import type { Defined } from './projections/definition.ts'
import { Projections } from './projections/index.ts'
import { projectionEvents } from './projections/options.ts'
import type { ProjectionEvents } from './projections/types.ts'
import { Ends } from './records/ends.ts'
import { Records } from './records/index.ts'
import { recordsVerbs } from './records/records.ts'
import type { DefinedSet } from './records/sets.ts'
import { Sweep } from './records/sweep.ts'
import { Worker } from './worker.ts'
import type { WorkerOptions } from './worker-options.ts'

/** Jobs of the capabilities, and what is called in place of jobs.cancel and jobs.retry. */
const ownVerbs = [recordsVerbs, batchesVerbs]

export interface PawlEvents extends JobEvents, ProjectionEvents {}

export interface Tenant {
  readonly tenant: string
  readonly jobs: Jobs
  readonly events: TenantEvents
  readonly projections: Projections
  readonly records: Records
  readonly batches: Batches
  readonly documents: Documents
  /** Open alerts, newest first. */
  alerts(): Promise<Alert[]>
}

export class Pawl implements Tenant {
  readonly tenant = ''
  readonly config: Config
  readonly jobs: Jobs
  readonly events: EventLog
  readonly projections: Projections
  readonly records: Records
  readonly batches: Batches
  readonly documents: Documents
  readonly #pool: Pool
  readonly #events: Events<PawlEvents>
  readonly #kinds = new Map<string, DefinedKind>()
  readonly #workers = new Set<Worker>()
  readonly #projections = new Map<string, Defined>()
  readonly #onLocal = new Set<() => void>()
  readonly #sets = new Map<string, DefinedSet>()
  readonly #keptSets = new Set<string>()
  readonly #ends = new Ends()
  readonly #sweep = new Sweep()
  readonly #batches = new Map<string, DefinedBatch>()
  readonly #finisher = new Finisher()
  readonly #documents: Registry

  constructor(options: PawlOptions) {
    this.config = resolveConfig(options)
    this.#events = new Events<PawlEvents>({ ...jobEvents, ...projectionEvents }, (error) =>
      this.config.logger.error({ error: String(error) }, 'an event listener failed'),
    )
    const { pool, database, callerConnectionsMax } = this.config
    this.#pool = pool ? borrowPool(pool, database.queryTimeoutMs) : createPool(database, 'caller', callerConnectionsMax, 'own')
    this.jobs = this.#jobs(undefined)
    this.events = new EventLog(this.#appendCore())
    this.projections = this.#projectionsOf('')
    this.records = this.#records(undefined)
    this.batches = this.#batchesOf(undefined)
    this.#documents = new Registry(this.#pool, this.config.payloadBytesMax, this.projections)
    this.documents = new Documents(this.#documents, undefined)
  }

  /**
   * The same for one tenant, a string of 1 to 100 characters: nothing that this handle does can name another's rows. Its workers still run the jobs
   * of every tenant.
   */
  for(tenant: string): Tenant {
    check('for', 'tenant', tenantName, tenant)
    return {
      tenant,
      jobs: this.#jobs(tenant),
      events: new TenantEvents(this.#appendCore(), tenant),
      projections: this.#projectionsOf(tenant),
      records: this.#records(tenant),
      batches: this.#batchesOf(tenant),
      documents: new Documents(this.#documents, tenant),
      alerts: async (...given: unknown[]) => {
        if (given.length > 0)
          throw refused(
            'alerts',
            "for one tenant it takes no options; pawl.alerts({ tenant: '*' }) lists the alerts of all tenants",
          )
        return listAlerts(this.#pool, tenant)
      },
    }
  }

  /** Brings the database's schema up to this release. Any number of processes may call it at once. */
  async migrate(): Promise<MigrateReport> {
    return migrate(this.config.direct)
  }

  on<Name extends keyof PawlEvents>(name: Name, listener: (event: PawlEvents[Name]) => void): () => void {
    return this.#events.on(name, listener)
  }

  /** Open alerts of the empty tenant, newest first; with `tenant: '*'` those of all tenants. */
  async alerts(options: AlertsOptions = {}): Promise<Alert[]> {
    const { tenant = '' } = resolve('alerts', alertsTable, options)
    return listAlerts(this.#pool, tenant)
  }

  /** What this process defines: kinds that have a handler here, and the names of projections and sinks. */
  get runnable(): { readonly kinds: readonly Kind[]; readonly projections: readonly string[] } {
    const kinds = [...this.#kinds.values()].filter(hasHandler).map(({ name, queue }) => ({ name, queue }))
    return { kinds, projections: [...new Set([...this.#projections.values()].map(({ name }) => name))] }
  }

  /** Runs everything that this process defines by now, jobs of all tenants and cursors; what it defines later is logged. Call start(). */
  worker(options: WorkerOptions = {}): Worker {
    const core = {
      config: this.config,
      kinds: this.#kinds,
      projections: this.#projections,
      workers: this.#workers,
      jobEvents: this.#eventsAs<JobEvents>(),
      projectionEvents: this.#eventsAs<ProjectionEvents>(),
      onLocal: (listener: () => void) => {
        this.#onLocal.add(listener)
        return () => void this.#onLocal.delete(listener)
      },
    }
    return new Worker(core, options)
  }

  /** Workers that this Pawl created and that have not stopped. */
  get running(): readonly Worker[] {
    return [...this.#workers]
  }

  /** Stops the workers of this Pawl, with their default grace, and closes the callers' pool, unless it is yours. */
  async close(): Promise<void> {
    await Promise.all(this.running.map((each) => each.stop()))
    await this.#pool.end()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close()
  }

  #appendCore(): AppendCore {
    const onAppended = () => {
      for (const listener of this.#onLocal) listener()
    }
    return { config: this.config, pool: this.#pool, onAppended }
  }

  #projectionsOf(tenant: string): Projections {
    const core = { config: this.config, pool: this.#pool, definitions: this.#projections, workers: this.#workers }
    return new Projections(core, tenant)
  }

  #records(tenant: string | undefined): Records {
    const core = {
      pool: this.#pool,
      sets: this.#sets,
      kept: this.#keptSets,
      jobs: (name: string) => this.#jobs(name, true),
      ends: this.#ends,
      sweep: this.#sweep,
      logger: this.config.logger,
    }
    return new Records(core, tenant)
  }

  #batchesOf(tenant: string | undefined): Batches {
    const core = {
      pool: this.#pool,
      batches: this.#batches,
      jobs: (name: string) => this.#jobs(name, true),
      finisher: this.#finisher,
      logger: this.config.logger,
      payloadBytesMax: this.config.payloadBytesMax,
    }
    return new Batches(core, tenant)
  }

  /** A capability emits its own events only. */
  #eventsAs<Map extends object>(): Events<Map> {
    return this.#events as unknown as Events<Map>
  }

  #jobs(tenant: string | undefined, isPawls = false): Jobs {
    const core = {
      config: this.config,
      kinds: this.#kinds,
      workers: this.#workers,
      events: this.#eventsAs<JobEvents>(),
      pool: this.#pool,
      isPawls,
      ownVerbs,
    }
    return new Jobs(core, tenant)
  }
}

export function createPawl(options: PawlOptions): Pawl {
  return new Pawl(options)
}

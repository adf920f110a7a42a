// The tables of one schedule: set up by one round trip, read by one. Product statements run through product connections.

import { Connection } from '../../packages/pawl/src/db/driver.ts'
import { type Parameter, type Statement, statement } from '../../packages/pawl/src/db/statement.ts'
import { leaseStatements } from '../../packages/pawl/src/kernel/lease.ts'

const named = (file: string) => statement(new URL('../../packages/pawl/src/jobs/jobs.ts', import.meta.url).href, file)

export const productStatements = {
  ...leaseStatements,
  claim: named('claim'),
  claimSuspect: named('claim-suspect'),
  settle: named('settle'),
  settleFailed: named('settle-failed'),
  cancel: named('cancel'),
  rescue: named('rescue'),
} as const
export type Statements = { readonly [Name in keyof typeof productStatements]: Statement }

/** Only steps move the clock by leases: a machine that stalls for some seconds must not end one. */
export const leaseMs = 120_000
/** The incarnations of every schedule. */
export const worker = { a: 1, b: 2 } as const
const nonce = '00000000-0000-4000-8000-000000000001'
const question = '00000000-0000-4000-8000-000000000002'

/** A clock that a step can move, a ledger, and the reset as a function, whose plans are made once. */
export const setupSql = `
create table pawl.clock_shift (ms bigint not null);
create or replace function pawl.now() returns timestamptz language sql volatile as
  'select clock_timestamp() + coalesce((select sum(ms) from pawl.clock_shift), 0) * interval ''1 millisecond''';
create table public.effect (job_id bigint not null, fence bigint not null, program text not null);
alter table pawl.job set (autovacuum_enabled = false);
alter table pawl.worker set (autovacuum_enabled = false);
do $$
declare
  v_name text;
begin
  -- Days that no schedule reaches only make each read more expensive.
  for v_name in
    select c.relname from pg_class c
    where c.relname ~ '^job_(history|attempt)_[0-9]{8}$' and to_date(right(c.relname, 8), 'YYYYMMDD') > current_date + 1
  loop
    execute format('drop table pawl.%I', v_name);
  end loop;
end
$$;
-- Two open incarnations and these jobs, ready.
create function public.reset(p_jobs integer) returns void language plpgsql as $$
begin
  delete from pawl.clock_shift;
  delete from public.effect;
  delete from pawl.job;
  delete from pawl.job_history;
  delete from pawl.job_attempt;
  delete from pawl.worker;
  delete from pawl.alert;
  insert into pawl.worker (id, nonce, lease_until)
    select id, '${nonce}',
      pawl.now() + interval '${leaseMs} milliseconds' * case id when ${worker.a} then 1 else 100 end
    from unnest(array[${worker.a}, ${worker.b}]) id;
  insert into pawl.job (id, queue, kind, state, payload, due, run_at)
    select id, 'default', 'k', 'ready', '{}', pawl.now() - interval '1 minute', pawl.now() from generate_series(1, p_jobs) id;
end
$$;
`

export const vacuumSql = [
  'pawl.job',
  'pawl.worker',
  'pawl.clock_shift',
  'pawl.job_history',
  'pawl.job_attempt',
  'public.effect',
].map((table) => `vacuum ${table}`)

export interface After {
  readonly live: readonly { id: string; state: string; fence: string; holder: number | null }[]
  readonly finished: readonly { id: string; outcome: string; fence: string }[]
  readonly effects: readonly { job_id: string; fence: string; program: string }[]
  readonly closed: readonly number[]
}

export const afterSql = `select
  coalesce((select jsonb_agg(jsonb_build_object('id', id::text, 'state', state, 'fence', fence::text, 'holder', holder)) from pawl.job), '[]') as live,
  coalesce((select jsonb_agg(jsonb_build_object('id', id::text, 'outcome', outcome, 'fence', fence::text)) from pawl.job_history), '[]') as finished,
  coalesce((select jsonb_agg(jsonb_build_object('job_id', job_id::text, 'fence', fence::text, 'program', program)) from public.effect), '[]') as effects,
  coalesce((select jsonb_agg(id) from pawl.worker where closed_at is not null), '[]') as closed`

export type Claimed = { readonly id: string; readonly fence: string }

const kinds = { kinds: '{k}', timeouts_ms: '{900000}', max_attempts: '{10}', max_crashes: '{3}' }
const list = (values: readonly (string | number | null)[]): string => `{${values.map((value) => value ?? 'null').join(',')}}`

/** One connection, and on it the statements as the product calls them. */
export class Engine extends Connection {
  readonly #sql: Statements

  constructor(url: string, purpose: string, sql: Statements) {
    const options = {
      url,
      pooler: 'none',
      connectTimeoutMs: 10_000,
      queryTimeoutMs: 30_000,
      applicationName: 'interleave',
    } as const
    // A crash of the server is not tested here.
    super(options, purpose, { durability: 'relaxed' })
    this.#sql = sql
  }

  /** An ordinary claim, and if it finds nothing one for a suspect. */
  async claim(who: number, limit = 1): Promise<Claimed[]> {
    const from = { queues: '{default}', after_dues: '{-infinity}', after_ids: '{0}' }
    const rows = await this.run<Claimed>(this.#sql.claim, { worker: who, nonce, limit, ...from, ...kinds })
    if (rows.length > 0) return rows
    const room = { queues: '{default}', rooms: '{1}', limit: 1, deciding: 'alone', drain_ms: 30_000 }
    const suspects = await this.run<Claimed | { id: null }>(this.#sql.claimSuspect, { worker: who, nonce, ...room, ...kinds })
    return suspects.filter((row): row is Claimed => row.id !== null)
  }

  settle(jobs: readonly Claimed[]): Promise<{ settled: number }[]> {
    const results = { results: list(jobs.map(() => null)), progress: '{}', at_least: 0, ran_ms: list(jobs.map(() => 1)) }
    return this.run(this.#sql.settle, { ...identity(jobs), ...results })
  }

  settleFailed(jobs: readonly Claimed[], who: number): Promise<unknown[]> {
    const of = (value: string | number) => list(jobs.map(() => value))
    const ends = {
      holders: of(who),
      outcomes: of('failed'),
      delays_ms: of(1000),
      errors: of('planned'),
      progress: '{}',
      ran_ms: of(1),
    }
    return this.run(this.#sql.settleFailed, { ...identity(jobs), ...ends })
  }

  cancel(id: string): Promise<unknown[]> {
    return this.run(this.#sql.cancel, { tenant: '', id, revision: null, by: null, reason: null, wake: true, is_pawls: false })
  }

  /** As a watcher does it: the holder of an ended lease is asked. */
  async ask(): Promise<unknown> {
    const ended = await this.query<{ id: number }>(
      'select id from pawl.worker where lease_until < pawl.now() and closed_at is null',
    )
    return this.run(this.#sql.ask, { workers: list(ended.map(({ id }) => id)), question })
  }

  /** Closes those that have not answered. */
  closeDead(): Promise<{ id: number }[]> {
    const of = (value: string) => list(Object.values(worker).map(() => value))
    const dead = { workers: list(Object.values(worker)), questions: of(question), reasons: of('"lease ended"') }
    return this.run(this.#sql.closeDead, dead)
  }

  rescue(): Promise<unknown[]> {
    return this.run(this.#sql.rescue, { workers: list(Object.values(worker)), limit: 1000, max_crashes: 3 })
  }

  async beat(who: number): Promise<boolean> {
    return (await this.run(this.#sql.beat, { worker: who, nonce, lease_ms: leaseMs })).length === 1
  }

  moveOn(ms: number): Promise<unknown[]> {
    return this.query(`insert into pawl.clock_shift values (${ms})`)
  }

  /** The lease of A ends, and A is asked whether it lives. */
  async endLease(): Promise<void> {
    await this.moveOn(leaseMs * 2)
    await this.ask()
  }
}

function identity(jobs: readonly Claimed[]): Record<string, Parameter> {
  return {
    tenants: list(jobs.map(() => '""')),
    ids: list(jobs.map(({ id }) => id)),
    fences: list(jobs.map(({ fence }) => fence)),
  }
}

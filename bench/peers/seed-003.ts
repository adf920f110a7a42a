// The claim of seed 003 (agenda's findOneAndUpdate) on PostgreSQL: select the next job, update it, one at a time, without row locks that
// others skip. The variant 'or' matches free and expired jobs in one condition, 'split' asks for free ones first and for expired ones only
// when there is none. A conflict is a claim that lost the job it had selected to another process.

import pg from 'pg'
import { type Peer, payloadOf, type Setup, type Started } from '../harness/protocol.ts'

const table = `
  create table if not exists seed_job (
    id bigint generated always as identity primary key,
    name text not null,
    disabled boolean not null default false,
    priority integer not null default 0,
    next_run_at timestamptz not null default now(),
    locked_at timestamptz,
    data jsonb not null
  );
  create index if not exists seed_job_next on seed_job (name, next_run_at, priority desc, locked_at) where not disabled;
  create index if not exists seed_job_locked on seed_job (locked_at) where locked_at is not null`

const free = '(s.locked_at is null and s.next_run_at <= now())'
const expired = `(s.locked_at <= now() - interval '10 minutes')`

function claimWhere(condition: string): string {
  return `
    with picked as materialized (
      select s.id
      from seed_job s
      where s.name = 'bench' and not s.disabled and ${condition}
      order by s.next_run_at, s.priority desc
      limit 1
    ),
    taken as (
      update seed_job s
      set locked_at = now()
      from picked p
      where s.id = p.id and ${condition}
      returning s.id, s.data
    )
    select (select id from picked) as picked, t.id as taken, t.data
    from (select) one
    left join taken t on true`
}

interface Claimed {
  readonly picked: string | null
  readonly taken: string | null
  readonly data: { readonly n: number } | null
}

export function open(started: Started, variant: string | undefined): Peer {
  const claims = variant === 'split' ? [claimWhere(free), claimWhere(expired)] : [claimWhere(`(${free} or ${expired})`)]
  const counts = { conflicts: 0, done: 0 }
  let client: pg.Client
  let loop: Promise<void> | undefined

  async function claim(): Promise<Claimed> {
    let row: Claimed = { picked: null, taken: null, data: null }
    for (const [index, text] of claims.entries()) {
      row = (await client.query<Claimed>({ name: `claim ${index}`, text })).rows[0]!
      if (row.picked !== null) return row
    }
    return row
  }

  async function drain(): Promise<void> {
    for (;;) {
      const { picked, taken, data } = await claim()
      if (picked === null) return
      if (taken === null) {
        counts.conflicts += 1
        continue
      }
      started(data!.n)
      await client.query({ name: 'done', text: 'delete from seed_job where id = $1', values: [taken] })
      counts.done += 1
    }
  }

  return {
    async prepare({ url }: Setup) {
      client = new pg.Client({ connectionString: url })
      await client.connect()
      await client.query(table)
    },
    async fill(count) {
      await client.query(
        `insert into seed_job (name, data) select 'bench', e.value from jsonb_array_elements($1::jsonb) e(value)`,
        [JSON.stringify(Array.from({ length: count }, (_, n) => payloadOf(n)))],
      )
    },
    async work() {
      loop = drain()
    },
    async remaining() {
      await loop
      const { rows } = await client.query<{ some: boolean }>('select exists (select from seed_job) as some')
      return rows[0]!.some ? 1 : 0
    },
    metrics: () => ({ ...counts }),
    async close() {
      await loop
      await client.end()
    },
  }
}

// The limit for the drain: one connection that claims a batch, deletes it and writes the same history rows, in a loop, on Pawl's own tables.
// It runs no handlers, keeps no lease, checks no worker, and nothing watches over it. The variant is the size of its batch.
// Each settle travels together with the next claim, so the server never waits for a round trip between the two.

import { createPawl } from 'pawl'
import pg from 'pg'
import { type Peer, payloadOf, type Setup, type Started } from '../harness/system/protocol.ts'

// The switches that Pawl gives its own connections, so that both have the same plans.
const settings = ['enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', 'jit'].map((name) => `-c ${name}=off`).join(' ')

const claim = `
  update pawl.job j
  set state = 'running', fence = (select pawl.next_fence()), holder = 1, attempt = j.attempt + 1, revision = j.revision + 1,
    claimed_at = c.now, run_until = c.now + interval '15 minutes'
  from (select clock_timestamp() as now) c
  where j.ctid = any (array(
      select k.ctid
      from pawl.job k
      where k.queue = 'default'
        and k.state = 'ready'
        and not k.suspect
      order by k.due, k.id
      limit $1
      for update skip locked
    ))
    and j.state = 'ready'
  returning j.id, j.fence, j.kind, j.attempt, j.payload`

const settle = `
  with gone as (
    delete from pawl.job j
    using unnest($1::bigint[], $2::bigint[]) as g(id, fence)
    where j.tenant = ''
      and j.id = g.id
      and j.fence = g.fence
    returning j.*
  )
  insert into pawl.job_history (id, fence, created_at, finished_at, ran_ms, holder, attempt, crashes, priority, payload_version, tenant,
    queue, kind, outcome, payload, headers)
  select o.id, o.fence, o.created_at, (select clock_timestamp()), 0, o.holder, o.attempt, o.crashes, o.priority, o.payload_version,
    o.tenant, o.queue, o.kind, 'done', o.payload, o.headers
  from gone o`

interface Row {
  readonly id: string
  readonly fence: string
  readonly payload: { readonly n: number }
}

export function open(started: Started, variant: string | undefined): Peer {
  const batch = Number(variant ?? '500')
  let client: pg.Client
  let loop: Promise<void> | undefined

  async function drain(): Promise<void> {
    let rows = (await client.query<Row>({ name: 'claim', text: claim, values: [batch] })).rows
    while (rows.length > 0) {
      for (const { payload } of rows) started(payload.n)
      const settled = client.query({
        name: 'settle',
        text: settle,
        values: [`{${rows.map(({ id }) => id).join(',')}}`, `{${rows.map(({ fence }) => fence).join(',')}}`],
      })
      const claimed = client.query<Row>({ name: 'claim', text: claim, values: [batch] })
      const count = (await settled).rowCount
      if (count !== rows.length) throw new Error(`the settle wrote ${count} of ${rows.length} rows`)
      rows = (await claimed).rows
    }
  }

  return {
    async prepare({ url }: Setup) {
      const pawl = createPawl({ databaseUrl: url })
      await pawl.migrate()
      await pawl.close()
      client = new pg.Client({ connectionString: url, options: settings, pipeline: true } as pg.ClientConfig)
      await client.connect()
    },
    async fill(count) {
      for (let from = 0; from < count; from += 1_000) {
        const payloads = JSON.stringify(
          Array.from({ length: Math.min(1_000, count - from) }, (_, index) => payloadOf(from + index)),
        )
        await client.query(`select count(*) from pawl.enqueue_many('', 'default', 'bench', $1::jsonb)`, [payloads])
      }
    },
    async work() {
      loop = drain()
      loop.catch((error) => {
        console.error(error)
        process.exit(1)
      })
    },
    async remaining() {
      const { rows } = await client.query<{ some: boolean }>('select exists (select from pawl.job) as some')
      return rows[0]!.some ? 1 : 0
    },
    async close() {
      await loop
      await client.end()
    },
  }
}

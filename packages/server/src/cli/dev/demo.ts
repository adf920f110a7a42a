// Demonstration jobs: a quick one, one whose first attempt fails, one that writes rows in its own transaction, and a delayed one. They have
// a queue and a schema of their own, so that they touch nothing of yours.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Pawl } from 'pawl'

export const demoQueue = 'demo'
const everyMs = 1500
const delay = '5s'

/** One at a time: of two that make a schema at once, "if not exists" lets one fail. */
export const demoSchemaSql = `
select pg_advisory_xact_lock(hashtextextended('pawl_demo', 0));
create schema if not exists pawl_demo;
create table if not exists pawl_demo.transfer (
  id bigint generated always as identity primary key,
  job_id bigint not null,
  account text not null,
  amount integer not null,
  at timestamptz not null default clock_timestamp()
)`

export function defineDemo(pawl: Pawl): void {
  pawl.jobs.define<{ name: string }>('demo.greet', { queue: demoQueue, run: (job) => `Hello ${job.payload.name}` })
  pawl.jobs.define('demo.flaky', {
    queue: demoQueue,
    retry: { initialMs: 1000, jitter: false },
    run: async (job) => {
      await sleep(20)
      if (job.attempt === 1) throw new Error('on purpose')
    },
  })
  pawl.jobs.define<{ from: string; to: string; amount: number }>('demo.transfer', {
    queue: demoQueue,
    tx: async (job, tx) => {
      const { from, to, amount } = job.payload
      await tx.query(
        'insert into pawl_demo.transfer (job_id, account, amount) values ($1::bigint, $2::text, -$4::integer), ($1::bigint, $3::text, $4::integer)',
        [job.id, from, to, amount],
      )
      // A demonstration that runs for weeks must not fill a disk.
      await tx.query('delete from pawl_demo.transfer where id <= (select max(id) from pawl_demo.transfer) - 1000')
    },
  })
  pawl.jobs.define('demo.remind', { queue: demoQueue, run: () => 'It is time' })
}

const names = ['Ada', 'Grace', 'Edsger', 'Barbara', 'Tony', 'Leslie']

/** A steady trickle until the signal fires: one job every one and a half seconds, each kind in its turn. */
export async function trickle(pawl: Pawl, signal: AbortSignal, onTrouble: (error: unknown) => void): Promise<void> {
  for (let turn = 0; !signal.aborted; turn++) {
    try {
      await addOne(pawl, turn)
    } catch (error) {
      onTrouble(error)
    }
    await sleep(everyMs, undefined, { signal }).catch(() => undefined)
  }
}

async function addOne(pawl: Pawl, turn: number): Promise<void> {
  const options = { queue: demoQueue }
  const [from, to] = [names[turn % names.length]!, names[(turn + 1) % names.length]!]
  if (turn % 4 === 0) await pawl.jobs.enqueue('demo.greet', { name: from }, options)
  else if (turn % 4 === 1) await pawl.jobs.enqueue('demo.transfer', { from, to, amount: 10 + (turn % 90) }, options)
  else if (turn % 4 === 2) await pawl.jobs.enqueue('demo.flaky', {}, options)
  else await pawl.jobs.enqueue('demo.remind', { name: from }, { ...options, delay })
}

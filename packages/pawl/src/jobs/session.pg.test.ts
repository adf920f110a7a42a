// What a tx handler leaves in its session never reaches the next job, and no setting of a role or database makes a commit less durable.

import { randomBytes } from 'node:crypto'
import type { Pawl, PawlOptions } from 'pawl'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { createDatabase, type TestDatabase, until } from '../../test/support/database.ts'
import type { Worker } from '../worker.ts'

let db: TestDatabase
const workers: Worker[] = []
beforeEach(async () => {
  db = await createDatabase()
})
afterEach(async () => {
  await Promise.all(workers.splice(0).map((worker) => worker.stop({ grace: 0 })))
  await db.drop()
})

async function startWorker(pawl: Pawl): Promise<Worker> {
  const worker = pawl.worker({ tuning: { handlerConnectionsMax: 1 } })
  workers.push(worker)
  await worker.start()
  return worker
}

const poolers: readonly NonNullable<PawlOptions['pooler']>[] = ['none', 'transaction']

test.each(poolers)('[J34] settings, role, tables and locks end with their handler (pooler %s)', async (pooler) => {
  const role = `r_${randomBytes(6).toString('hex')}`
  await db.query(`create role ${role}; grant usage on schema pawl to ${role}; grant all on all tables in schema pawl to ${role};
    grant all on all sequences in schema pawl to ${role}`)
  const pawl = db.pawl({ pooler })
  pawl.jobs.define<{ fails: boolean }>('leaves', {
    retry: { attempts: 1 },
    tx: async (job, tx) => {
      await tx.query('create temporary table left_behind (a integer)')
      await tx.query('select pg_advisory_lock(4242)')
      await tx.query("set app.tenant = 'acme'; set search_path = pg_catalog; listen left_behind")
      await tx.query(`set role ${role}`)
      if (job.payload.fails) throw new Error('on purpose')
    },
  })
  const found: unknown[] = []
  pawl.jobs.define('finds', {
    tx: async (_job, tx) => {
      const { rows } = await tx.query(
        `select coalesce(current_setting('app.tenant', true), '') as tenant,
        current_user = session_user as is_itself, current_setting('search_path') as path, to_regclass('pg_temp.left_behind') as temporary,
        (select count(*)::integer from pg_listening_channels()) as listens, $1::integer as one`,
        [1],
      )
      found.push(rows[0])
    },
  })
  const worker = await startWorker(pawl)
  for (const fails of [false, true]) {
    await pawl.jobs.enqueue('leaves', { fails })
    await worker.whenIdle()
    expect(await db.query("select from pg_locks where locktype = 'advisory' and objid = 4242")).toEqual([])
    await pawl.jobs.enqueue('finds', {})
    await worker.whenIdle()
    expect(found.splice(0)).toEqual([{ tenant: '', is_itself: true, path: 'public', temporary: null, listens: 0, one: 1 }])
  }
  expect(worker.metrics()).toMatchObject({ done: 3, failed: 1 })
  await db.query(`drop owned by ${role}; drop role ${role}`)
})

test('[J34] a session that cannot be reset is dropped; its commit stands', async () => {
  await db.query(`create or replace function pawl.reset_session(p_durable boolean) returns void language plpgsql as
    $$ begin raise exception 'not this session'; end $$`)
  const pawl = db.pawl()
  const pids: number[] = []
  pawl.jobs.define('work', {
    retry: { attempts: 1 },
    tx: async (_job, tx) => {
      const { rows } = await tx.query<{ pid: number }>('select pg_backend_pid() as pid')
      pids.push(rows[0]!.pid)
    },
  })
  const worker = await startWorker(pawl)
  for (let n = 0; n < 3; n++) {
    await pawl.jobs.enqueue('work', {})
    await worker.whenIdle()
  }
  expect(new Set(pids).size).toBe(3)
  expect(worker.metrics()).toMatchObject({ done: 3, failed: 0 })
})

test.each(poolers)('[J34] no commit is less durable than it promises (pooler %s)', async (pooler) => {
  await db.query(`alter database ${db.name} set synchronous_commit = off;
    create table public.level (kind text, level text);
    create function note() returns trigger language plpgsql as
      $$ begin insert into public.level values (new.kind, current_setting('synchronous_commit')); return null; end $$;
    create trigger note after insert on pawl.job_history for each row execute function note()`)
  const pawl = db.pawl({ pooler })
  pawl.jobs.define('plain', { tx: async (_job, tx) => tx.query('select 1') })
  pawl.jobs.define('empty', { tx: async () => undefined })
  pawl.jobs.define('shared', { share: 10, tx: async (_job, tx) => tx.query('select 1') })
  const worker = await startWorker(pawl)
  for (const kind of ['plain', 'shared', 'plain', 'empty', 'plain']) {
    await pawl.jobs.enqueueMany(kind, kind === 'shared' ? [1, 2, 3] : [1])
    await worker.whenIdle()
  }
  await until('all are done', () => worker.metrics().done === 7)
  expect(await db.query('select level, count(*)::integer as n from public.level group by level')).toEqual([{ level: 'on', n: 7 }])
})

test('[J34] a higher durability of the database stays', async () => {
  await db.query(`alter database ${db.name} set synchronous_commit = remote_apply`)
  const pawl = db.pawl()
  const levels: unknown[] = []
  pawl.jobs.define('plain', {
    tx: async (_job, tx) => levels.push(...(await tx.query("select current_setting('synchronous_commit') as level")).rows),
  })
  const worker = await startWorker(pawl)
  await pawl.jobs.enqueueMany('plain', [1, 2])
  await worker.whenIdle()
  expect(levels).toEqual([{ level: 'remote_apply' }, { level: 'remote_apply' }])
})

// When the log and its readers are at rest, and when a process has nothing left that others have not taken over.

import type { Rig } from '../rig.ts'

/** Every committed event has a position, every cursor has finished everything that is its own, and nothing is parked or to be refreshed. */
export async function isAtRest(rig: Rig): Promise<boolean> {
  const [row] = await rig.query<{ busy: boolean }>(
    `select exists (select from pg_prepared_xacts)
       or exists (select from pawl.event e, pawl.sequencer s where not pg_visible_in_snapshot(e.xid, s.snapshot))
       or exists (select from pawl.parked_key)
       or exists (select from pawl.dirty)
       or exists (
         select
         from pawl.cursor_at c
         join pawl.log_page p on p.tenant = '' and p.last_position > c.position
         cross join lateral unnest(p.xids, p.seqs) with ordinality u(xid, seq, n)
         join pawl.event e on e.xid = u.xid and e.seq = u.seq
         where p.first_position + u.n - 1 > c.position
           and not c.done @> (p.first_position + u.n - 1)
           and ((pawl.event_bucket(e.tenant, e.aggregateid) + 1) * c.shards - 1) / 1024 = c.shard
       ) as busy`,
  )
  return !row!.busy
}

export async function isTakenOver(rig: Rig, pid: number): Promise<boolean> {
  const [row] = await rig.query<{ over: boolean | null }>(
    `select bool_and(w.closed_at is not null) and not exists (
       select from pawl.cursor_at c where c.holder = any (array_agg(w.id))
     ) as over
     from pawl.worker w join pawl.worker_process p on p.id = w.id where p.pid = $1`,
    [pid],
  )
  return row?.over === true
}

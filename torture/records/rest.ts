// When records are at rest, and when a process has nothing left that others have not taken over.

import type { Rig } from '../rig.ts'

/** Nothing is submitting, nothing is still to be applied, and what was committed has left no staged rows behind. */
export async function isAtRest(rig: Rig): Promise<boolean> {
  const [row] = await rig.query<{ busy: boolean }>(
    `select exists (select from pawl.submission where state = 'submitting')
       or exists (select from pawl.job where kind = 'pawl.records.apply' and state <> 'dead')
       or exists (
         select from pawl.submission u join pawl.submission_row r on r.tenant = u.tenant and r.submission = u.id where u.state = 'submitted'
       ) as busy`,
  )
  return !row!.busy
}

/** Something was taken over, refused by a fence, given up, resumed, outrun by a commit; what else a storm must show comes before these. */
export async function hasShown(rig: Rig): Promise<boolean> {
  const [row] = await rig.query<{ shown: boolean }>(
    `select exists (select from pawl.refusal)
       and exists (select from pawl.job_attempt where kind = 'pawl.records.apply' and outcome = 'crashed')
       and exists (select from torture.change where to_state = 'failed')
       and exists (select from torture.change where from_state = 'failed' and to_state = 'submitting')
       and exists (select from torture.change where to_state = 'superseded') as shown`,
  )
  return row!.shown
}

/** A user holds nothing that others wait for but the locks of a short transaction: stopped for a moment is long enough. */
const userPauseMs = 1500
const askedFirst = new Map<number, number>()

export async function isTakenOver(rig: Rig, pid: number): Promise<boolean> {
  const [row] = await rig.query<{ workers: number; over: boolean | null }>(
    `select count(*)::integer as workers, bool_and(w.closed_at is not null) and not exists (
       select from pawl.job j where j.state = 'running' and j.holder = any (array_agg(w.id))
     ) as over
     from pawl.worker w join pawl.worker_process p on p.id = w.id where p.pid = $1`,
    [pid],
  )
  if (row!.workers > 0) return row!.over === true
  if (!askedFirst.has(pid)) askedFirst.set(pid, performance.now())
  if (performance.now() - askedFirst.get(pid)! < userPauseMs) return false
  return askedFirst.delete(pid)
}

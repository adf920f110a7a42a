// When jobs are at rest, and when a process has nothing left that others have not taken over.

import type { Rig } from '../rig.ts'

export async function isAtRest(rig: Rig): Promise<boolean> {
  const [row] = await rig.query<{ live: boolean }>("select exists (select from pawl.job where state <> 'dead') as live")
  return !row!.live
}

export async function isTakenOver(rig: Rig, pid: number): Promise<boolean> {
  const [row] = await rig.query<{ over: boolean | null }>(
    `select bool_and(w.closed_at is not null) and not exists (
       select from pawl.job j where j.state = 'running' and j.holder = any (array_agg(w.id))
     ) as over
     from pawl.worker w join pawl.worker_process p on p.id = w.id where p.pid = $1`,
    [pid],
  )
  return row?.over === true
}

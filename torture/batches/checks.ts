// The checks of batches. They read every change of batches, items and their jobs, the answers of handlers, and ledgers that enforce nothing.

import { type Check, count, groupBy, type Judged, judged, type RunEnd, readFacts, told } from '../checks.ts'
import { type Change, changesOf } from '../recorder.ts'
import type { Rig } from '../rig.ts'

// ---- facts

type BatchChange = Change<
  'id' | 'track' | 'state' | 'revision' | 'allowance_ms' | 'deadline' | 'boundary_at' | 'closed_at',
  'waiting' | 'ended' | 'allowed' | 'overdue'
>
type ItemChange = Change<'batch_id' | 'n' | 'job_id' | 'outcome' | 'late_at' | 'restored_at', 'batch' | 'job'>
type Stored = Record<'id' | 'track' | 'state', string> &
  Record<'key' | 'rerunOf' | 'boundary_at' | 'closed_at', string | null> &
  Record<'total' | 'items' | 'done' | 'failed' | 'waiting' | 'marks', number>
type StoredItem = { batch: string; n: number; outcome: string | null; late: boolean; mark: string | null }
type Noted = { batch: string; n: number; xid: string }
type Hook = Omit<Noted, 'n'> & { state: string } & Record<'done' | 'failed' | 'waiting' | 'marks', number>

async function readBatchFacts(rig: Rig, end: RunEnd) {
  const facts = await readFacts(rig, end, async (rows) => {
    const changes: BatchChange[] = await changesOf(rows, 'batch')
    // A refused start removes its own items, in the queued batch that no other session has seen.
    const itemChanges = ((await changesOf(rows, 'batch_item')) as ItemChange[]).filter(
      ({ new: now, seen }) => now !== null || seen.batch !== 'queued',
    )
    const jobChanges: Change<'id' | 'kind' | 'state' | 'holder'>[] = await changesOf(rows, 'job')
    const [counted] = await rows<{ takeOvers: number }>(
      `select count(*)::integer as "takeOvers" from pawl.job_attempt where kind like 'pawl.batch.%' and outcome = 'crashed'`,
    )
    return {
      changes,
      itemChanges,
      jobChanges,
      ...counted!,
      batches: await rows<Stored>(
        `select b.id::text, b.track, b.state, b.meta ->> 'key' as key, b.rerun_of::text as "rerunOf", b.boundary_at::text, b.closed_at::text, b.total,
           count(i)::integer as items, count(*) filter (where i.outcome = 'done')::integer as done,
           count(*) filter (where i.outcome = 'failed')::integer as failed, (count(i) - count(i.outcome))::integer as waiting,
           coalesce(sum((i.sums ->> 'mark')::bigint), 0)::float8 as marks
         from pawl.batch b left join pawl.batch_item i on i.tenant = b.tenant and i.batch_id = b.id group by b.tenant, b.id order by b.id`,
      ),
      items: await rows<StoredItem>(
        `select batch_id::text as batch, n, outcome, late_at is not null as late, sums ->> 'mark' as mark from pawl.batch_item order by 1, 2`,
      ),
      effects: await rows<Noted>('select batch::text, n, xid from torture.effect'),
      crossed: await rows<Omit<Noted, 'n'>>('select batch::text, xid from torture.crossed'),
      restored: await rows<Noted>('select batch::text, n, xid from torture.restored'),
      hooks: await rows<Hook>('select batch::text, state, done, failed, waiting, marks::float8, xid from torture.hook'),
      live: await rows<{ id: string; kind: string; state: string; error: string | null }>(
        `select id::text, kind, state, last_error as error from pawl.job where kind not in ('pawl.batch.watch', 'pawl.batch.remove')`,
      ),
      names: new Map(
        (await rows<{ id: string; name: string }>('select id::text, name from pawl.batch')).map(({ id, name }) => [id, name]),
      ),
    }
  })
  return facts
}

type Facts = Awaited<ReturnType<typeof readBatchFacts>>

export async function judge(rig: Rig, end: RunEnd): Promise<Judged> {
  const facts = await readBatchFacts(rig, end)
  const { entries, changes, items, refusals, restored, takeOvers } = facts
  const became = (from: string, to: string) => count(changes, ({ old, new: now }) => old?.state === from && now?.state === to)
  const shown = {
    finished: became('running', 'finished'),
    'timed out': became('running', 'timed-out'),
    replaced: became('running', 'replaced'),
    cancelled: became('running', 'cancelled'),
    failed: became('running', 'failed'),
    'from the queue': count(told(entries, 'start', 'ok'), ({ state }) => state === 'queued'),
    'items failed': count(items, ({ outcome }) => outcome === 'failed'),
    late: count(items, ({ late }) => late),
    restored: restored.length,
    'taken over': takeOvers,
    refused: refusals,
    busy: count(entries, ({ op, code }) => op === 'start' && code === 'PAWL_TRACK_BUSY'),
  }
  return judged(checks, facts, { changes: changes.length + facts.itemChanges.length, shown, more: {} })
}

// ---- checks

const isEnd = (state: string | undefined): boolean => state !== undefined && state !== 'queued' && state !== 'running'
const idOf = ({ batch, n }: { readonly batch?: unknown; readonly n?: unknown }): string => `${batch}/${n}`
/** Changes that are the end of a batch. */
const ends = (changes: readonly BatchChange[]) => changes.filter(({ old, new: now }) => !isEnd(old?.state) && isEnd(now?.state))
/** Changes that gave an item its outcome. */
const outcomes = (changes: readonly ItemChange[]) =>
  changes.filter(({ old, new: now }) => old !== null && old.outcome !== now?.outcome)

const legal: Readonly<Record<string, readonly string[]>> = {
  queued: ['running', 'cancelled'],
  running: ['finished', 'timed-out', 'replaced', 'cancelled', 'failed'],
}

export const checks = {
  /** An answered start is there whole and once, a refused one is not, and no batch came from nowhere. */
  'starts hold'({ entries, batches }, find) {
    const byKey = groupBy(batches, ({ key, rerunOf }) => (rerunOf === null ? (key ?? '') : undefined))
    const starts = told(entries, 'start')
    const asked = new Map(starts.filter(({ ph }) => ph === 'invoke').map(({ key, total }) => [String(key), total]))
    for (const { ph, key, id, code } of starts) {
      const found = byKey.get(String(key)) ?? []
      if (ph === 'ok' && found[0]?.id !== id) find(`start ${key} was answered with batch ${id}, which is not there`)
      if (ph === 'fail' && found.length > 0) find(`start ${key} was refused (${code}), and batch ${found[0]!.id} is there`)
    }
    for (const [key, found] of byKey) {
      if (found.length > 1 || !asked.has(key))
        find(`${found.length} batches of start ${key}, ${asked.has(key) ? 'asked once' : 'never asked'}`)
      if (found[0]!.total !== asked.get(key))
        find(`batch ${found[0]!.id} has ${found[0]!.total} items, ${asked.get(key)} were asked for`)
    }
    for (const { id, total, items } of batches) if (total !== items) find(`batch ${id} has ${items} items of ${total}`)
    return starts.length
  },

  /** Replayed from every change of a state; each follows the diagram. */
  'one running per track'({ changes }, find) {
    const running = new Map<string, string>()
    for (const { old, new: now } of changes) {
      const { id, track } = (now ?? old)!
      if (old !== null && now !== null && old.state !== now.state && !legal[old.state]?.includes(now.state))
        find(`batch ${id} went from ${old.state} to ${now.state}`)
      const other = running.get(track)
      if (now?.state === 'running' && old?.state !== 'running' && other !== undefined)
        find(`batch ${id} began on track ${track} while batch ${other} ran`)
      if (now?.state === 'running') running.set(track, id)
      else if (other === id) running.delete(track)
    }
    return changes.length
  },

  /** An outcome is written once, while the batch runs, in the transaction in which the holder of the item's job settles that job. */
  'written by its holder'({ itemChanges, jobChanges, items, entries, workerNames }, find) {
    const settled = groupBy(jobChanges, ({ xid, old, new: now }) =>
      now === null && old!.state === 'running' ? `${xid} ${old!.id}` : undefined,
    )
    const written = outcomes(itemChanges)
    for (const { xid, proc, old, new: now, seen } of written) {
      const item = `item ${now?.batch_id}/${now?.n}`
      if (old!.outcome !== null) find(`${item} was ${old!.outcome} and became ${now?.outcome}`)
      if (seen.batch !== 'running') find(`${item} became ${now?.outcome} when its batch was ${seen.batch}`)
      const [job] = settled.get(`${xid} ${now?.job_id}`) ?? []
      const holder = job === undefined ? undefined : workerNames.get(job.old!.holder)
      if (job === undefined ? now?.outcome === 'done' || !['dead', null].includes(seen.job) : holder !== proc)
        find(
          `${item} became ${now?.outcome} by ${proc}; its job was ${job === undefined ? 'not settled with it' : `held by ${holder}`}`,
        )
    }
    const answers = new Map(told(entries, 'answer').map((entry) => [String(entry.mark), entry]))
    const byItem = new Map(written.map((change) => [idOf({ batch: change.new?.batch_id, n: change.new?.n }), change]))
    for (const item of items) {
      const proc = item.mark === null ? undefined : answers.get(item.mark)?.proc
      if (proc !== undefined && proc !== byItem.get(idOf(item))?.proc)
        find(`item ${idOf(item)} has the answer of ${proc}, written by ${byItem.get(idOf(item))?.proc}`)
    }
    return written.length
  },

  /** Finished means that no item waits, read at the very moment of the end; and an end with no item left is finished. */
  'finished after the last item'({ changes }, find) {
    const all = ends(changes).filter(({ old }) => old?.state === 'running')
    for (const { new: now, seen } of all) {
      if ((now!.state === 'finished') === (seen.waiting === '0')) continue
      find(`batch ${now!.id} became ${now!.state} with ${seen.waiting} items waiting`)
    }
    return all.length
  },

  /** The deadline counts from the start of the run, moves only with the allowance, and no batch times out before it. */
  'deadline is the allowance'({ changes, entries }, find) {
    const clocks = told(entries, 'fault').filter(({ kind }) => kind === 'clock')
    for (const { at, old, new: now, seen } of changes) {
      if (now === null) continue
      const what = `batch ${now.id} with an allowance of ${now.allowance_ms} ms`
      if (now.state === 'running' && old?.state !== 'running' && seen.allowed !== now.allowance_ms)
        find(`${what} began to run with ${seen.allowed} ms until its deadline`)
      if (old?.state === 'running' && old.deadline !== now.deadline && old.allowance_ms === now.allowance_ms)
        find(`${what} got another deadline`)
      // A step of the clock may lie between the decision and what was recorded of it.
      if (now.state === 'timed-out' && seen.overdue !== 'true' && !clocks.some(({ wall }) => Math.abs(wall - at) < 2000))
        find(`${what} timed out before its deadline`)
    }
    return changes.length
  },

  /** After the end no item changes but for its mark of lateness; and an item has the answer of its own handler. */
  'late changes nothing'({ changes, itemChanges, batches, items, entries }, find) {
    const stored = new Map(batches.map((batch) => [batch.id, batch]))
    for (const { new: now, seen } of ends(changes)) {
      const { waiting, done, failed } = stored.get(now!.id)!
      if (seen.waiting !== String(waiting) || seen.ended !== String(done + failed))
        find(
          `batch ${now!.id} ended with ${seen.waiting} items waiting and ${seen.ended} ended, and has now ${waiting} and ${done + failed}`,
        )
    }
    const answers = new Set(told(entries, 'answer').map((entry) => `${idOf(entry)} ${entry.mark}`))
    const isOdd = (item: StoredItem) =>
      (item.outcome === 'done') !== (item.mark !== null) || (item.mark !== null && !answers.has(`${idOf(item)} ${item.mark}`))
    for (const item of items.filter(isOdd))
      find(`item ${idOf(item)} is ${item.outcome} with ${item.mark}, which its handler did not answer`)
    const late = itemChanges.filter(({ old, new: now }) => old !== null && old.late_at !== now?.late_at)
    for (const { new: now, seen } of late)
      if (!isEnd(seen.batch) || now?.outcome !== null)
        find(`item ${now?.batch_id}/${now?.n} is late, ${now?.outcome}, in a batch that was ${seen.batch}`)
    return items.length + late.length
  },

  /** Of `exact` and `guarded`: done means one effect, in the transaction of the outcome; anything else means none. */
  'effects once'({ items, effects, itemChanges, names }, find) {
    const byItem = groupBy(effects, idOf)
    const xids = new Map(outcomes(itemChanges).map(({ xid, new: now }) => [`${now?.batch_id}/${now?.n}`, xid]))
    const own = items.filter(({ batch }) => names.get(batch) !== 'plain')
    for (const item of own) {
      const found = byItem.get(idOf(item)) ?? []
      if (found.length !== (item.outcome === 'done' ? 1 : 0))
        find(`item ${idOf(item)} is ${item.outcome} and has ${found.length} effects`)
      else if (found.length === 1 && found[0]!.xid !== xids.get(idOf(item)))
        find(`item ${idOf(item)} has its effect in another transaction`)
    }
    return own.length
  },

  /** The boundary is crossed once, by a running batch; without it every item is restored once, with it none. */
  'boundary or restore'({ batches, changes, crossed, restored, itemChanges }, find) {
    const crossings = groupBy(crossed, ({ batch }) => batch)
    const restores = groupBy(restored, ({ batch }) => batch)
    for (const { id, state, total, boundary_at, closed_at } of batches) {
      const times = crossings.get(id)?.length ?? 0
      if (times !== (boundary_at === null ? 0 : 1))
        find(`batch ${id} crossed its boundary ${times} times, says its row at ${boundary_at}`)
      const got = restores.get(id) ?? []
      const wanted = boundary_at === null && state !== 'finished' && closed_at !== null ? total : 0
      if (closed_at !== null && (got.length !== wanted || new Set(got.map(idOf)).size !== wanted))
        find(`batch ${id} is ${state} with ${total} items, boundary ${boundary_at}, and restored ${got.length}`)
    }
    for (const { old, new: now } of changes)
      if (old?.boundary_at !== now?.boundary_at && now?.boundary_at && now.state !== 'running')
        find(`batch ${now.id} crossed its boundary when it was ${now.state}`)
    const marked = new Set(
      itemChanges.flatMap(({ xid, old, new: now }) =>
        old?.restored_at !== now?.restored_at ? [`${xid} ${now?.batch_id}/${now?.n}`] : [],
      ),
    )
    for (const each of restored)
      if (!marked.has(`${each.xid} ${idOf(each)}`)) find(`item ${idOf(each)} is not marked where it is restored`)
    return batches.length
  },

  /** Of each batch that ended, after its end. */
  'hook once'({ batches, changes, hooks }, find) {
    const byBatch = groupBy(hooks, ({ batch }) => batch)
    const endings = new Map(ends(changes).map((change) => [change.new!.id, change]))
    for (const { id, state, closed_at } of batches) {
      const found = byBatch.get(id) ?? []
      if (found.length !== (closed_at === null ? 0 : 1))
        find(`batch ${id} is ${state}, closed ${closed_at}, and its hook ran ${found.length} times`)
      for (const hook of found) {
        if (hook.state !== state || !isEnd(state)) find(`the hook of batch ${id} saw ${hook.state}; it is ${state}`)
        if (hook.xid === endings.get(id)?.xid) find(`the hook of batch ${id} ran in the transaction of its end`)
      }
    }
    return hooks.length
  },

  /** What the hook was told is what the items add up to. */
  'counts are the items'({ batches, hooks }, find) {
    const stored = new Map(batches.map((batch) => [batch.id, batch]))
    for (const hook of hooks) {
      const batch = stored.get(hook.batch)!
      const parts = ['done', 'failed', 'waiting', 'marks'] as const
      const wrong = parts.filter((part) => hook[part] !== batch[part]).map((part) => `${part} ${hook[part]}, not ${batch[part]}`)
      if (wrong.length > 0) find(`the hook of batch ${hook.batch} was told: ${wrong.join('; ')}`)
    }
    return hooks.length
  },

  /** No track is wedged: every batch has ended and is closed, and every process stops in order. */
  'all at rest'({ isDrained, batches, live, notStopped }, find) {
    if (!isDrained) {
      for (const { id, track, state } of batches.filter(({ closed_at }) => closed_at === null))
        find(`batch ${id} on track ${track} is ${state}`)
      for (const { id, kind, state, error } of live) find(`job ${id} of kind ${kind} is ${state}: ${error}`)
    }
    for (const name of notStopped) find(`${name} did not stop in order`)
    return batches.length
  },
} satisfies Record<string, Check<Facts>>

export type CheckName = keyof typeof checks

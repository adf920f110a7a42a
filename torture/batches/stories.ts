// The stories of batches, and the planted bugs that show in them. Without its bug each story is clean.

import { setTimeout as sleep } from 'node:timers/promises'
import { Batches } from 'pawl'
import { swap } from '../canary.ts'
import { inTransaction } from '../pool.ts'
import type { Rig } from '../rig.ts'
import type { Story } from '../scenario.ts'
import type { CheckName } from './checks.ts'
import type { BatchesTraffic, Name, Work } from './traffic.ts'

const track = 'a'

export const stories: Readonly<Record<string, Story<BatchesTraffic, CheckName>>> = {
  'many at once': {
    tells: 'Two workers run many short items of one batch.',
    async play(rig, { user }) {
      await Promise.all([rig.startProcess('w1'), rig.startProcess('w2')])
      await user.start({ key: 'many', name: 'exact', track, items: items(80, { ms: 3 }) })
      await closed(rig, 1)
    },
    shows: {
      'counter-by-read-modify-write': {
        caughtBy: 'counts are the items',
        schema: ['alter table pawl.batch add column counted integer not null default 0'],
        functions: {
          complete_item: swap(
            'perform pawl.guard_batch(p_tenant, p_batch, p_batch_fence);',
            `perform pawl.guard_batch(p_tenant, p_batch, p_batch_fence);
             update pawl.batch set counted = c.counted + 1
             from (select b.counted from pawl.batch b, pg_sleep(0.005) where b.tenant = p_tenant and b.id = p_batch) c
             where tenant = p_tenant and id = p_batch;`,
          ),
        },
        statements: {
          'batches/get': swap(
            'c.done, c.failed',
            '(select x.counted from pawl.batch x where x.tenant = b.tenant and x.id = b.id) as done, c.failed',
          ),
        },
      },
    },
  },
  'last item against an end': {
    tells: 'A person cancels a batch while its last item holds it, and the item completes before the end has its lock.',
    async play(rig, { user }) {
      await rig.startProcess('w1')
      for (let round = 0; round < 4; round++) {
        const started = (await user.start({ key: `held ${round}`, name: 'guarded', track, items: [{ until: 'waiter' }] }))!
        await rig.until(() => rig.wrote('item', 'w1') > round)
        await rig.until(() => user.cancel(started.id), 3000)
        await closed(rig, round + 1)
      }
    },
    shows: {
      'finish-test-outside-the-lock': { caughtBy: 'finished after the last item', functions: { end_locked_batch: testEarly } },
    },
  },
  'ended during a settle': {
    tells: 'An item answers while a transaction that ended its batch is not yet committed.',
    async play(rig, traffic) {
      await rig.startProcess('w1')
      const { id } = (await traffic.user.start({ key: 'ended', name: 'plain', track, items: [{ until: 'go' }] }))!
      await rig.until(() => rig.wrote('item', 'w1') > 0)
      await inTransaction(rig.admin, async (client) => {
        await client.query("select pawl.end_batch('', $1::bigint, 'cancelled', 'torture')", [id])
        await traffic.set('go')
        await rig.until(() => rig.wrote('answer', 'w1') > 0)
        await sleep(500)
      })
    },
    shows: {
      'state-read-before-the-lock': { caughtBy: 'written by its holder', functions: { settle_items: readEarly } },
    },
  },
  'zombie answers': {
    tells: 'An item answers after its batch was replaced, and before its job was cleared away.',
    play: (rig, traffic) => outlive(rig, traffic, 'plain'),
    shows: {
      'late-item-counted-into-the-next': { caughtBy: 'late changes nothing', functions: { settle_items: settleLatest } },
    },
  },
  'zombie commits': {
    tells: 'The transaction of an item commits after its batch was replaced, and before its job was cleared away.',
    play: (rig, traffic) => outlive(rig, traffic, 'exact'),
    shows: {
      'late-effects-kept': {
        caughtBy: 'effects once',
        functions: {
          complete_item: swap(
            'perform pawl.guard_batch(p_tenant, p_batch, p_batch_fence);',
            `if not exists (select from pawl.batch b where b.tenant = p_tenant and b.id = p_batch and b.state = 'running') then
              return;
            end if;`,
          ),
        },
      },
    },
  },
  'two finishers': {
    tells: 'Two workers settle the last two items at once, and each finds that no item is left.',
    async play(rig, traffic) {
      const faults = [
        { probe: 'batches.settled', hit: 1, kind: 'block', ms: 800 },
        { probe: 'batches.end.before', hit: 1, kind: 'block', ms: 1500 },
      ] as const
      await traffic.user.start({ key: 'two', name: 'plain', track, items: [{ until: 'go' }, { until: 'go' }] })
      await Promise.all(['w1', 'w2'].map((slot) => rig.startProcess(slot, { faults, concurrency: 1 })))
      await rig.until(() => rig.wrote('item', 'w1') > 0 && rig.wrote('item', 'w2') > 0, 7000)
      await traffic.set('go')
      await closed(rig, 1)
    },
    shows: {
      'hook-run-by-both': {
        caughtBy: 'hook once',
        functions: {
          end_locked_batch: (text) =>
            swap(
              "if v_was is null or not (v_was = 'running' or v_was = 'queued' and p_state = 'cancelled') then",
              "if v_was is null or p_state <> 'finished' and v_was <> 'running' then",
            )(swap(/if v_was = 'running'\s+and not exists/, 'if not exists')(text)),
        },
        statements: { closed: swap('and b.closed_at is null', '') },
      },
    },
  },
  'starts on one track': {
    tells: 'Eight people start batches on one track at once, and each waits for the one before.',
    async play(rig, { user }) {
      const start = (_: unknown, index: number) =>
        user.start({ key: `start ${index}`, name: 'plain', track, policy: 'queue', items: items(3, { ms: 20 }) })
      await Promise.all(Array.from({ length: 8 }, start))
      await rig.startProcess('w1')
      await closed(rig, 8)
    },
    shows: {
      'deadline-set-at-insert': {
        caughtBy: 'deadline is the allowance',
        functions: { run_next_batch: swap('deadline = c.now + b.allowance_ms', 'deadline = b.created_at + b.allowance_ms') },
      },
      'track-not-unique': {
        caughtBy: 'one running per track',
        schema: ['drop index pawl.batch_running'],
        functions: {
          run_next_batch: swap("b.track = p_track and b.state = 'running';", "b.track = p_track and b.state = 'nothing';"),
        },
      },
      'queue-not-advanced': {
        caughtBy: 'all at rest',
        functions: { end_batch: swap("if state not in ('busy', 'running') then", 'if false then') },
      },
    },
  },
  'cancelled before its boundary': {
    tells:
      'A batch is cancelled before its boundary while the job of that step is locked, as by a claim: the end cannot cancel it.',
    async play(rig, { user }) {
      const faults = [{ probe: 'batches.prepared', hit: 1, kind: 'drain' }] as const
      const { id } = (await user.start({ key: 'early', name: 'plain', track, items: items(3) }))!
      await rig.startProcess('w1', { faults })
      await rig.until(async () => (await rig.count('select count(prepared) as n from pawl.batch')) > 0)
      await rig.stopProcess('w1')
      await inTransaction(rig.admin, async (client) => {
        await client.query("select from pawl.job where kind = 'pawl.batch.plain.step' for update")
        await rig.until(() => user.cancel(id), 3000)
      })
      // In its one slot that step runs before the end, which was enqueued later.
      await rig.startProcess('w2', { concurrency: 1 })
      await closed(rig, 1)
    },
    shows: {
      'boundary-without-compare': {
        caughtBy: 'boundary or restore',
        statements: { boundary: swap(/and b\.state = 'running'\s+and b\.boundary_at is null/, 'and b.boundary_at is null') },
      },
    },
  },
  'start rolled back': {
    tells: 'A person starts a batch in a transaction and rolls it back.',
    async play(rig, { user }) {
      await rig.startProcess('w1')
      await user.start({ key: 'rolled back', name: 'plain', track, items: items(2), way: 'rolled back' })
      await user.start({ key: 'kept', name: 'plain', track, items: items(2), way: 'own' })
      await sleep(200)
    },
    shows: { 'start-outside-the-transaction': { caughtBy: 'starts hold', inRig: startOutside } },
  },
}

function items(length: number, work: Work = {}): Work[] {
  return Array.from({ length }, () => work)
}

async function closed(rig: Rig, batches: number): Promise<void> {
  await rig.until(
    async () => (await rig.count('select count(*) as n from pawl.batch where closed_at is not null')) >= batches,
    7000,
  )
}

/** The only worker has one slot, which the item keeps until it answers: nothing clears its job before. */
async function outlive(rig: Rig, traffic: BatchesTraffic, name: Name): Promise<void> {
  const { user } = traffic
  await rig.startProcess('w1', { concurrency: 1 })
  await user.start({ key: 'first', name, track, items: [{ until: 'go' }] })
  await rig.until(() => rig.wrote('item', 'w1') > 0)
  await user.start({ key: 'second', name, track, policy: 'replace', items: items(2) })
  await traffic.set('go')
}

// ---- bugs that are more than one rewrite

/** Whether an item waits is read before the lock. */
function testEarly(text: string): string {
  const waits = 'v_waits boolean := pawl.first_waiting_item(p_tenant, p_id) is not null;'
  const early = swap('v_state text := p_state;', `v_state text := p_state;\n  ${waits}`)(text)
  return swap(
    /not exists \(select from pawl\.batch_item i[^)]*\)\s+and pawl\.first_waiting_item\(p_tenant, p_id\) is null/,
    'not v_waits',
  )(early)
}

/** The lock is waited for in the statement that reads the state, whose snapshot is older. */
function readEarly(text: string): string {
  const unlocked = swap('where pg_try_advisory_xact_lock_shared(pawl.batch_lock(g.tenant, g.batch))', '')(text)
  return swap(
    /where g\.batch = any \(v_locked\)(?=\s+and b\.state)/,
    "where pg_advisory_xact_lock_shared(pawl.batch_lock(g.tenant, g.batch))::text = ''",
  )(unlocked)
}

/** An item belongs to the latest batch of its track: seed 004's latest("pk"). */
function settleLatest(text: string): string {
  const latest =
    '(select max(l.id) from pawl.batch l join pawl.batch o on o.tenant = l.tenant and o.track = l.track where o.id = g.batch)'
  const open = swap('(g.batch, g.fence) not in (select o.id, o.fence', 'g.batch is null and g.fence not in (select o.fence')(text)
  return swap(
    /and i\.batch_id = g\.batch(?=\s+and i\.n = g\.n\s+and i\.outcome is null\s+\)\s+select s)/,
    `and i.batch_id = ${latest}`,
  )(open)
}

function startOutside(): void {
  const { start } = Batches.prototype
  Batches.prototype.start = function (this: Batches, batch, given, { tx: _ignored, ...options } = {}) {
    return start.call(this, batch, given, options)
  } as typeof start
}

// The log under torture: two processes that append in every way and ingest, three that give positions and run projections and sinks, an
// operator who mends, pauses, rebuilds and switches, a stranger who leaves transactions open, and readers who wait for what they wrote.

import type { ProbeName } from 'pawl/testing'
import { statement } from '../../packages/pawl/src/db/statement.ts'
import { runsOf } from '../../packages/pawl/src/projections/acts.ts'
import { drawFaults, drawKeeperFault, probes } from '../plan.ts'
import type { Rig } from '../rig.ts'
import { crashCases, type Place, type Round, type Scenario } from '../scenario.ts'
import { judge } from './checks.ts'
import { stories } from './stories.ts'
import {
  foldedName,
  keys,
  LogTraffic,
  mendAll,
  operator,
  operatorSlot,
  readOnceMore,
  resumeAll,
  transaction,
  worker,
  writer,
  writerSlots,
} from './traffic.ts'

const slots = ['w1', 'w2', 'w3']
/** What a process meets more seldom than the others: all three refresh, and each does a third of it. */
const hitsMax: Readonly<Partial<Record<ProbeName, number>>> = { 'projections.acquired': 1, 'projections.state.handled': 3 }

export const log: Scenario<LogTraffic> = {
  name: 'log',
  recorded: [
    { table: 'sequencer', columns: 'n position' },
    { table: 'cursor', columns: 'name generation shard position done fence holder' },
    { table: 'parked_key', columns: 'name generation key' },
  ],
  ledgers: `
    -- How often each key was written. Its row is locked until the writer's transaction ends, so n is the true order of the key's events.
    create table torture.counter (key text primary key, n bigint not null);
    insert into torture.counter select k || i, 0 from (values ('k', 12), ('reader', 4), ('stranger', 2)) v(k, n), generate_series(1, n) i;
    -- One row per event, written in the transaction that appended it: what committed.
    create table torture.wrote (batch text not null, i integer not null, key text not null, n bigint not null);
    -- A table whose trigger appends, as an application that cannot be changed would do it.
    create table torture.thing (key text not null, data jsonb not null);
    create function torture.append_thing() returns trigger language plpgsql as $$
    begin
      perform pawl.append('Written', 'thing', new.key, new.data);
      return null;
    end
    $$;
    create trigger torture_append after insert on torture.thing for each row execute function torture.append_thing();
    -- What handlers applied. The ids are drawn while the cursor's row is locked: their order is the order of application.
    create table torture.applied (
      id bigint generated always as identity, name text not null, generation integer not null, position bigint not null, event_id uuid not null,
      key text not null, n bigint, proc text not null, xid xid8 not null default pg_current_xact_id()
    );
    create index applied_name on torture.applied (name, generation);
    -- The tables of the projection that is rebuilt and switched.
    create table torture.balance (key text primary key, events bigint not null, total bigint not null);
    create table torture.journal (position bigint not null, key text not null);
    -- What refreshes of the state projection wrote: the last of each key, and all of them.
    create table torture.copied (key text primary key, n bigint not null);
    create table torture.refreshed (id bigint generated always as identity, key text not null, n bigint not null);
    -- Every position with its event.
    create view torture.log as
    select (p.first_position + u.n - 1)::float8 as position, e.id::text as id, e.aggregateid as key, e.type, e.payload as data,
      pawl.event_bucket(e.tenant, e.aggregateid) as bucket
    from pawl.log_page p
    cross join lateral unnest(p.xids, p.seqs) with ordinality u(xid, seq, n)
    left join pawl.event e on e.xid = u.xid and e.seq = u.seq
    where p.tenant = '';`,
  programs: { worker, writer, operator },
  aims: {
    slots,
    // Each process meets parking and replaying too seldom for a storm: the matrix strikes there.
    probes: {
      kill: [
        ...probes(
          'events.sequence.before events.sequence.after projections.acquired projections.batch.before projections.batch.moved',
        ),
        ...probes('projections.batch.handled projections.batch.committed projections.sink.handled projections.sink.flushed'),
        ...probes('projections.state.handled'),
      ],
      pause: probes('projections.batch.before projections.sink.handled events.sequence.before projections.state.handled'),
      reset: [
        ...probes('events.sequence.before projections.batch.moved projections.sink.handled projections.batch.handled'),
        ...probes('projections.state.handled'),
      ],
      terminate: probes('events.sequence.before projections.batch.handled projections.sink.handled projections.state.handled'),
      restart: [
        ...probes('events.sequence.after projections.batch.handled projections.batch.committed projections.sink.handled'),
        ...probes('projections.sink.flushed'),
      ],
      'commit-unknown': [
        ...probes('events.sequence.before projections.batch.handled projections.batch.moved projections.sink.handled'),
        ...probes('projections.state.handled'),
      ],
      'sql-40001': [
        ...probes('events.sequence.before projections.batch.before projections.batch.handled projections.sink.flushed'),
        ...probes('projections.state.handled'),
      ],
      clock: probes('events.sequence.after projections.batch.committed projections.sink.handled'),
      block: probes('projections.batch.before projections.batch.handled projections.sink.handled'),
      drain: probes('projections.batch.before projections.batch.committed projections.sink.flushed'),
    },
    hitsMax: (probe) => hitsMax[probe] ?? 8,
    more: (seed, seconds) => {
      const every = (everySeconds: number) => ({ seed, seconds, everySeconds })
      // No 40001: without a transaction the append has committed here, and no database would answer that.
      const ofWriters = ['kill', 'kill', 'kill', 'reset', 'commit-unknown', 'commit-unknown', 'pause'] as const
      return Object.fromEntries([
        ...slots.map((slot) => [`${slot} keeper`, drawFaults(`keeper ${slot}`, every(10), (random) => drawKeeperFault(random))]),
        ...writerSlots.map((slot) => [
          slot,
          drawFaults(slot, every(3), (random) => ({
            probe: 'events.append.sent',
            hit: random.whole(5, 25),
            kind: random.pick(ofWriters),
          })),
        ]),
        [
          operatorSlot,
          drawFaults(operatorSlot, every(6), (random) => ({
            probe: random.pick(probes('projections.switch.before_commit projections.rebuild.held')),
            hit: random.whole(1, 2),
            kind: random.pick(['kill', 'reset', 'commit-unknown'] as const),
          })),
        ],
      ])
    },
  },
  traffic: LogTraffic,
  stories,
  matrix: {
    cases: crashCases(places()),
    concurrency: 8,
    users: ({ provocation }, seed) => {
      if (provocation === 'append') return { role: 'writer', how: `${seed} append` }
      return provocation === 'rebuild' ? { role: 'operator' } : undefined
    },
    provoke,
    roundMs: () => 2500,
  },
  isAtRest,
  async isTakenOver(rig, pid) {
    const [row] = await rig.query<{ over: boolean | null }>(
      `select bool_and(w.closed_at is not null) and not exists (
         select from pawl.cursor c where c.holder = any (array_agg(w.id))
       ) as over
       from pawl.worker w join pawl.worker_process p on p.id = w.id where p.pid = $1`,
      [pid],
    )
    return row?.over === true
  },
  judge,
}

/** Left out: events.rebase.after and events.retain.*, which only a restore or the end of a day brings; the tests beside them play them. */
function places(): Place[] {
  const provocations: Partial<Record<ProbeName, string>> = {
    'events.append.sent': 'append',
    'projections.release.before': 'stop',
    'projections.fail.before': 'bad event',
    'projections.park.before': 'bad event',
    'projections.unpark.handled': 'bad event',
    'projections.rebuild.held': 'rebuild',
    'projections.switch.before_commit': 'rebuild',
  }
  const withoutStatement = [
    ...probes('events.sequence.after projections.acquired projections.batch.committed projections.sink.handled'),
    ...probes('projections.sink.flushed'),
  ]
  const once = probes('projections.release.before projections.switch.before_commit projections.rebuild.held')
  return [
    ...probes(
      'events.append.sent events.sequence.before events.sequence.after projections.sink.handled projections.sink.flushed',
    ),
    ...probes('projections.acquired projections.release.before projections.batch.before projections.batch.moved'),
    ...probes('projections.event.handled projections.batch.handled projections.batch.committed projections.fail.before'),
    ...probes('projections.park.before projections.unpark.handled projections.state.taken projections.state.handled'),
    ...probes('projections.rebuild.held projections.switch.before_commit'),
  ].map((probe) => ({
    probe,
    provocation: provocations[probe] ?? 'work',
    isWithoutStatement: withoutStatement.includes(probe),
    isOnce: once.includes(probe),
  }))
}

async function provoke(traffic: LogTraffic, { each: { probe, provocation }, slot, number, key }: Round): Promise<void> {
  const { rig, writer } = traffic
  // A process never comes to what it does not hold: the holder is killed.
  const isHeldByOne = probe === 'projections.acquired' || probe === 'projections.event.handled'
  if (isHeldByOne && number % 2 === 1) rig.signal('w2', 'SIGKILL')
  const isBad = provocation === 'bad event'
  for (const each of keys) await writer.write(transaction(`${key}/${each}`, each, 2, { isBad }))
  await traffic.observe()
  if (isBad) await mendAll(rig.admin)
  if (provocation === 'stop') rig.signal(slot, 'SIGTERM')
}

/** A hold of an operator that died ends by itself after a minute, or with the next comparison, which does this. */
async function liftHolds({ admin }: Rig): Promise<void> {
  const { rows } = await admin.query('select from pawl.cursor where hold_at is not null')
  const folder = new URL('../../packages/pawl/src/projections/any.ts', import.meta.url).href
  if (rows.length > 0) await runsOf(admin as never).run(statement(folder, 'unhold-generations'), { tenant: '', name: foldedName })
}

/**
 * Every committed event has a position, every cursor has finished everything that is its own, and nothing is parked or to be refreshed.
 * Until then the rig mends, resumes and lifts holds.
 */
async function isAtRest(rig: Rig): Promise<boolean> {
  await Promise.all([mendAll(rig.admin), resumeAll(rig.admin), liftHolds(rig)]).catch(() => undefined)
  await readOnceMore(rig)
  const [row] = await rig.query<{ busy: boolean }>(
    `select exists (select from pg_prepared_xacts)
       or exists (select from pawl.event e, pawl.sequencer s where not pg_visible_in_snapshot(e.xid, s.snapshot))
       or exists (select from pawl.parked_key)
       or exists (select from pawl.dirty)
       or exists (
         select from pawl.cursor c join torture.log l on l.position > c.position
         where not c.done @> l.position::bigint and ((l.bucket + 1) * c.shards - 1) / 1024 = c.shard
       ) as busy`,
  )
  return !row!.busy
}

// The log under torture: two processes that append in every way and ingest, three that give positions and run projections and sinks, an
// operator who mends, pauses, rebuilds and switches, a stranger who leaves transactions open, and readers who wait for what they wrote.

import { type ProbeName, probeNames } from 'pawl/testing'
import { drawFaults, keeperFaults, probes, type Random } from '../plan.ts'
import type { Rig } from '../rig.ts'
import { crashCases, type Round, type Scenario } from '../scenario.ts'
import { judge } from './checks.ts'
import { stories } from './stories.ts'
import { keys, LogTraffic, mendAll, operator, operatorSlot, transaction, worker, writer, writerSlots } from './traffic.ts'

const slots = ['w1', 'w2', 'w3']
/** Probes that a process reaches less often: all three refresh, and each does a third of it. */
const hitsMax: Readonly<Partial<Record<ProbeName, number>>> = { 'projections.acquired': 1, 'projections.state.handled': 3 }

const cursorAt = 'from pawl.cursor_at c where (c.name, c.generation, c.shard) = (r.name, r.generation, r.shard)'

export const log: Scenario<LogTraffic> = {
  name: 'log',
  recorded: [
    { table: 'sequencer', columns: 'n position' },
    {
      table: 'cursor',
      columns: 'name generation shard fence holder',
      seen: {
        position: `select c.position ${cursorAt}`,
        done: `select c.done ${cursorAt}`,
        parked:
          "select string_agg(e.position::text, ' ') from pawl.parked_event e where (e.name, e.generation, e.shard) = (r.name, r.generation, r.shard)",
      },
    },
    { table: 'cursor_position', columns: 'name generation shard position done', seen: { holder: `select c.holder ${cursorAt}` } },
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
  holds: 'cursor',
  programs: { worker, writer, operator },
  aims: {
    slots,
    // Each process meets parking and replaying too seldom for a storm: the matrix strikes there.
    probes: {
      kill: probes(
        'events: sequence.before sequence.after projections: acquired batch.before batch.moved batch.handled batch.committed sink.handled sink.flushed state.handled',
      ),
      pause: probes('events: sequence.before projections: batch.before sink.handled state.handled'),
      reset: probes('events: sequence.before projections: batch.moved batch.handled sink.handled state.handled'),
      terminate: probes('events: sequence.before projections: batch.handled sink.handled state.handled'),
      restart: probes('events: sequence.after projections: batch.handled batch.committed sink.handled sink.flushed'),
      'commit-unknown': probes('events: sequence.before projections: batch.handled batch.moved sink.handled state.handled'),
      'sql-40001': probes('events: sequence.before projections: batch.before batch.handled sink.flushed state.handled'),
      clock: probes('events: sequence.after projections: batch.committed sink.handled'),
      block: probes('projections: batch.before batch.handled sink.handled'),
      drain: probes('projections: batch.before batch.committed sink.flushed'),
    },
    hitsMax: (probe) => hitsMax[probe] ?? 8,
    more: (storm) => {
      const ofWriter = (random: Random) => {
        // No 40001: without a transaction the append has committed here, and no database would answer that.
        const kind = random.pick(['kill', 'kill', 'kill', 'reset', 'commit-unknown', 'commit-unknown', 'pause'] as const)
        return { probe: 'events.append.sent' as const, hit: random.whole(5, 25), kind }
      }
      const ofOperator = (random: Random) => ({
        probe: random.pick(probes('projections: switch.before_commit rebuild.held')),
        hit: random.whole(1, 2),
        kind: random.pick(['kill', 'reset', 'commit-unknown'] as const),
      })
      return {
        ...keeperFaults(slots, storm, 10),
        ...Object.fromEntries(writerSlots.map((slot) => [slot, drawFaults(slot, storm, 3, ofWriter)])),
        [operatorSlot]: drawFaults(operatorSlot, storm, 6, ofOperator),
      }
    },
  },
  traffic: LogTraffic,
  stories,
  matrix: {
    cases: crashCases({
      // Only a restore or the end of a day brings these; the tests beside them play them.
      probes: probeNames.filter((probe) => /^(events|projections)\./.test(probe) && !/rebase|retain/.test(probe)),
      provocations: {
        append: probes('events: append.sent'),
        stop: probes('projections: release.before'),
        'bad event': probes('projections: fail.before park.before unpark.handled'),
        rebuild: probes('projections: rebuild.held switch.before_commit'),
      },
      withoutStatement: probes('events: sequence.after projections: acquired batch.committed sink.handled sink.flushed'),
      once: probes('projections: release.before switch.before_commit rebuild.held'),
    }),
    concurrency: 8,
    users: ({ provocation }, seed) => {
      if (provocation === 'append') return { role: 'writer', how: `${seed} append` }
      return provocation === 'rebuild' ? { role: 'operator' } : undefined
    },
    provoke,
    roundMs: () => 2500,
  },
  isAtRest,
  judge,
}

async function provoke(traffic: LogTraffic, { each: { probe, provocation }, slot, number, key }: Round): Promise<void> {
  const { rig, user: writer } = traffic
  // A process never comes to what it does not hold: the holder is killed.
  const isHeldByOne = probe === 'projections.acquired' || probe === 'projections.event.handled'
  if (isHeldByOne && number % 2 === 1) rig.signal('w2', 'SIGKILL')
  const isBad = provocation === 'bad event'
  for (const each of keys) await writer.write(transaction(`${key}/${each}`, each, 2, { isBad }))
  await traffic.observe()
  if (isBad) await mendAll(writer)
  if (provocation === 'stop') rig.signal(slot, 'SIGTERM')
}

/**
 * Every committed event has a position, every cursor has finished everything that is its own, and nothing is parked or to be refreshed.
 */
async function isAtRest(rig: Rig, traffic: LogTraffic): Promise<boolean> {
  await traffic.tend()
  const [row] = await rig.query<{ busy: boolean }>(
    `select exists (select from pg_prepared_xacts)
       or exists (select from pawl.event e, pawl.sequencer s where not pg_visible_in_snapshot(e.xid, s.snapshot))
       or exists (select from pawl.parked_key)
       or exists (select from pawl.dirty)
       or exists (
         select from pawl.cursor_at c join torture.log l on l.position > c.position
         where not c.done @> l.position::bigint and ((l.bucket + 1) * c.shards - 1) / 1024 = c.shard
       ) as busy`,
  )
  return !row!.busy
}

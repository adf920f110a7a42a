// The planted bugs of outbox.

import { type Canary, swap } from '../canary.ts'
import type { GeneralCheckName } from '../finish.ts'
import type { CheckName } from './checks.ts'
import { acknowledgeAtOnce, forgetKeys, forgetStores, sendOutside } from './patches.ts'

export const canaries: readonly Canary<CheckName | GeneralCheckName>[] = [
  {
    name: 'cursor-by-sequence',
    bug: 'What has a number above the last one that got a position is new; whoever drew a smaller one and commits later is passed over.',
    proves: 'An event that committed late and was lost is seen.',
    caughtBy: 'committed and logged',
    story: 'late committer',
    functions: {
      sequence_events: swap(
        'where pg_visible_in_snapshot(w.xid, v_current)',
        `where pg_visible_in_snapshot(w.xid, v_current)
      and w.seq > (select coalesce(max(u.seq), 0) from pawl.log_page p cross join lateral unnest(p.seqs) u(seq))`,
      ),
    },
  },
  {
    name: 'cursor-below-snapshot-xmin',
    bug: 'Only what is below every transaction in progress gets a position.',
    proves: "A log that stands still behind a stranger's open transaction is seen.",
    caughtBy: 'waits for nobody',
    story: 'stranger stays',
    functions: {
      sequence_events: swap(
        'v_current := pawl.snapshot_without_me(pg_current_snapshot());',
        `v_current := pawl.snapshot_without_me(pg_current_snapshot());
  v_current := case
    when pg_snapshot_xmin(v_current) < pg_snapshot_xmax(v_row.snapshot) then v_row.snapshot
    else format('%s:%s:', pg_snapshot_xmin(v_current), pg_snapshot_xmin(v_current))::pg_snapshot
  end;`,
      ),
    },
  },
  {
    name: 'two-snapshots-in-one-tick',
    bug: 'A tick remembers a later snapshot than the one that it gave positions by.',
    proves: 'An event that committed between the two and was lost is seen.',
    caughtBy: 'committed and logged',
    story: 'busy ticks',
    functions: {
      // The sleep only makes sure that somebody commits meanwhile.
      sequence_events: swap(
        'if sequenced > p_limit then',
        `perform pg_sleep(0.05);
  v_current := pawl.snapshot_without_me(pg_current_snapshot());
  if sequenced > p_limit then`,
      ),
    },
  },
  {
    name: 'order-by-transaction',
    bug: 'Within a tick events are ordered by the ids of their transactions.',
    proves: 'Two events of one key in the wrong order are seen.',
    caughtBy: 'order of each key',
    story: 'second writer began first',
    functions: {
      sequence_events: swap('row_number() over (order by w.seq, w.xid)', 'row_number() over (order by w.xid, w.seq)'),
    },
  },
  {
    name: 'position-left-out',
    bug: 'Each tick leaves a position out.',
    proves: 'A hole in the log is seen.',
    caughtBy: 'dense positions',
    story: 'plain deliveries',
    functions: {
      sequence_events: swap('set position = v_row.position + sequenced,', 'set position = v_row.position + sequenced + 1,'),
    },
  },
  {
    name: 'dedup-by-transaction-id',
    bug: 'Once an event of a source transaction was taken in, the others of it count as repeated.',
    proves: 'An event of the source that was acknowledged and dropped is seen.',
    caughtBy: 'ingested once',
    story: 'source in parts',
    functions: { ingest_events: swap('if p_position < was then', 'if p_position <= was then') },
  },
  {
    name: 'acknowledged-before-handled',
    bug: 'A sink counts an event as finished as soon as it has read it.',
    proves: 'An event that died with its process and was never handed over again is seen.',
    caughtBy: 'called at least once',
    story: 'killed in a call',
    inProcess: acknowledgeAtOnce,
  },
  {
    name: 'keys-forgotten',
    bug: 'Events of one key are handed over at once.',
    proves: 'A call that begins before the one before it has ended is seen.',
    caughtBy: 'called in order',
    story: 'plain deliveries',
    inProcess: forgetKeys,
  },
  {
    name: 'replayed-from-an-old-list',
    bug: 'An unparked key is replayed from a list that is older than what was stored of it since.',
    proves: 'An event that was handed over again although it had ended and nobody died is seen.',
    caughtBy: 'called in order',
    story: 'parked and mended',
    inProcess: forgetStores,
  },
  {
    name: 'effects-outside-the-transaction',
    bug: 'What a handler sends is committed at once, whatever becomes of its batch.',
    proves: 'An effect that is there twice is seen.',
    caughtBy: 'effects once',
    story: 'batch fails once',
    inProcess: sendOutside,
  },
  {
    name: 'dead-holder-keeps-cursor',
    bug: 'A cursor is free only when its holder has given it back.',
    proves: 'Events that are never worked on are seen.',
    caughtBy: 'all at rest',
    story: 'killed in a call',
    statements: { look: swap('w.id is null or', 'c.holder is null or') },
  },
]

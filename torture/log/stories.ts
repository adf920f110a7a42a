// The stories of the log, and the planted bugs that show in them. Without its bug each story is clean.

import { type LogEvent, Projections } from 'pawl'
import { endLease } from 'pawl/testing'
import pg from 'pg'
import { bind } from '../../packages/pawl/src/db/statement.ts'
import { Transaction } from '../../packages/pawl/src/db/transaction.ts'
import { cursorStatements, HeldCursor } from '../../packages/pawl/src/projections/cursor.ts'
import { Acks } from '../../packages/pawl/src/projections/sinks/acks.ts'
import { SinkKeys } from '../../packages/pawl/src/projections/sinks/sink-keys.ts'
import { SinkStore } from '../../packages/pawl/src/projections/sinks/sink-store.ts'
import { replaces, rewrites, sendOutside, swap } from '../canary.ts'
import { stream } from '../plan.ts'
import type { ChildOptions } from '../process.ts'
import type { Rig } from '../rig.ts'
import type { Story } from '../scenario.ts'
import type { CheckName } from './checks.ts'
import { Ingester, keys, type LogTraffic, names, operatorSlot, transaction } from './traffic.ts'

/** All cursors that there are before a rebuild. */
const cursors = 11

// A parameter stays in use, so that its number still means something.
const anyFence = swap(/and (c\.fence = \$\d+::bigint)/, 'and ($1 or true)')
const anyPosition = swap(/and (p\.position = \$\d+::bigint)/, 'and ($1 or true)')
const sequencing = (from: string, to: string) => ({ functions: { sequence_events: swap(from, to) } })

export const stories: Readonly<Record<string, Story<LogTraffic, CheckName>>> = {
  // ---- positions
  'late committer': {
    tells: 'A transaction appends first and commits last.',
    async play(rig, { user: writer }) {
      await rig.startProcess('w1')
      const filled = async () => {
        await writer.write(transaction('early', 'k2', 2))
        await untilHead(rig, 2)
      }
      await writer.write(transaction('late', 'k1', 2, { filled }))
    },
    shows: {
      'cursor-by-sequence': {
        caughtBy: 'committed and logged',
        ...sequencing(
          'where pg_visible_in_snapshot(w.xid, v_current)',
          `where pg_visible_in_snapshot(w.xid, v_current)
      and w.seq > (select coalesce(max(u.seq), 0) from pawl.log_page p cross join lateral unnest(p.seqs) u(seq))`,
        ),
      },
    },
  },
  'stranger stays': {
    tells: "A stranger's transaction stays open while users append and are delivered.",
    async play(rig, traffic) {
      await rig.startProcess('w1')
      await traffic.user.write(transaction('first', 'k3', 1))
      await untilHead(rig, 1)
      for (let time = 0; time < 3; time++) await traffic.holdOpen()
    },
    shows: {
      'cursor-below-snapshot-xmin': {
        caughtBy: 'waits for no stranger',
        ...sequencing(
          'v_current := pawl.snapshot_without_me(pg_current_snapshot());',
          `v_current := pawl.snapshot_without_me(pg_current_snapshot());
  v_current := case
    when pg_snapshot_xmin(v_current) < pg_snapshot_xmax(v_row.snapshot) then v_row.snapshot
    else format('%s:%s:', pg_snapshot_xmin(v_current), pg_snapshot_xmin(v_current))::pg_snapshot
  end;`,
        ),
      },
    },
  },
  'busy ticks': {
    tells: 'Two processes give positions while another appends as fast as it can.',
    async play(rig, traffic) {
      await Promise.all([rig.startProcess('w1'), rig.startProcess('w3')])
      await rig.startProcess('p1', { role: 'writer', how: '1' })
      await untilHead(rig, 200)
      await rig.stopProcess('p1')
      await traffic.endPrepared(0)
    },
    shows: {
      'two-snapshots-in-one-tick': {
        caughtBy: 'committed and logged',
        // The sleep only makes sure that a transaction commits between the two.
        ...sequencing(
          'if sequenced > p_limit then',
          `perform pg_sleep(0.05);
  v_current := pawl.snapshot_without_me(pg_current_snapshot());
  if sequenced > p_limit then`,
        ),
      },
    },
  },
  'second writer began first': {
    tells: 'Of two writers of one key the second to commit was the first to begin, and one tick meets both.',
    async play(rig, { user: writer }) {
      // The very first tick reads everything there is; this is about those that follow.
      await rig.startProcess('w1')
      await writer.write(transaction('zeroth', 'k1', 1))
      await untilHead(rig, 1)
      await rig.stopProcess('w1')
      const begun = () => writer.write(transaction('first', 'k1', 1))
      await writer.write(transaction('second', 'k1', 1, { isEarly: true, begun }))
      await rig.startProcess('w2')
    },
    shows: {
      'order-by-transaction': {
        caughtBy: 'order of each key',
        ...sequencing('row_number() over (order by w.seq, w.xid)', 'row_number() over (order by w.xid, w.seq)'),
      },
    },
  },
  'plain deliveries': {
    tells: 'Two processes deliver a few transactions; nothing goes wrong.',
    async play(rig, { user: writer }) {
      await Promise.all([rig.startProcess('w1'), rig.startProcess('w2')])
      for (let batch = 0; batch < 12; batch++) {
        await writer.write(transaction(`batch ${batch}`, `k${1 + (batch % 3)}`, 5))
        await untilHead(rig, (batch + 1) * 5, 1000)
      }
    },
    shows: {
      'position-left-out': {
        caughtBy: 'dense positions',
        ...sequencing('set position = v_row.position + sequenced,', 'set position = v_row.position + sequenced + 1,'),
      },
      'keys-forgotten': { caughtBy: 'called in order', inProcess: forgetKeys },
    },
  },
  'source in parts': {
    tells: 'What a source says in one of its transactions is brought in two calls, and once more as a whole.',
    async play(rig, { user: writer }) {
      await rig.startProcess('w1')
      const ingester = new Ingester(writer)
      const random = stream(1, 'ingests')
      for (let time = 0; time < 10; time++) await ingester.step(random)
    },
    shows: {
      'dedup-by-transaction-id': {
        caughtBy: 'ingested once',
        functions: { ingest_events: swap('if p_position < was then', 'if p_position <= was then') },
      },
    },
  },

  // ---- deliveries and effects
  'killed in a call': {
    tells: 'A process is killed while it hands over the events of one key, and another goes on.',
    async play(rig, { user: writer }) {
      for (let batch = 0; batch < 4; batch++) await writer.write(transaction(`batch ${batch}`, 'k1', 10))
      await rig.strike('w1', { probe: 'projections.sink.handled', hit: 20, kind: 'kill' })
      await rig.startProcess('w2')
    },
    shows: {
      'acknowledged-before-handled': { caughtBy: 'called at least once', inProcess: acknowledgeAtOnce },
      'dead-holder-keeps-cursor': rewrites('all at rest', { survey: swap('w.id is null or', 'c.holder is null or') }),
    },
  },
  'batch fails once': {
    tells: 'A serialization failure ends a batch when its handlers have run; it is applied again.',
    async play(rig, { user: writer }) {
      for (const key of keys.slice(0, 4)) await writer.write(transaction(key, key, 5))
      const faults = [1, 2, 3].map(() => ({ probe: 'projections.batch.handled', hit: 1, kind: 'sql-40001' }) as const)
      await rig.startProcess('w1', { faults })
      await rig.until(() => rig.wrote('fault') >= faults.length)
    },
    shows: {
      'effects-outside-the-transaction': { caughtBy: 'reacted once', inProcess: effectsOutside },
      'reaction-appends-outside-the-transaction': { caughtBy: 'reacted once', inProcess: appendOutside },
    },
  },
  'killed before the commit': {
    tells: 'A process is killed when its handlers have run and nothing is committed, and another goes on.',
    async play(rig, traffic) {
      for (const key of keys.slice(0, 4)) await traffic.user.write(transaction(`${key}/1`, key, 3))
      await rig.strike('w1', { probe: 'projections.batch.handled', hit: 2, kind: 'kill' })
      const holder = await holderOf(rig)
      await traffic.observe()
      await rig.startProcess('w2')
      // A slow machine's worker waits 5 s for the dead one's answer: longer than the rest of a story with a planted bug.
      await untilTakenFrom(rig, holder)
    },
    shows: {
      'checkpoint-before-state': { caughtBy: 'checkpoint and state agree', inProcess: moveFirst },
      'cursor-fence-kept': rewrites('fences never repeat', {
        acquire: swap('fence = pawl.next_fence()', 'fence = greatest(c.fence, 1)'),
      }),
    },
  },
  'late holder': {
    tells: 'A process hangs before it applies; its lease ends, another applies everything, and then it goes on where it was.',
    async play(rig, traffic) {
      // Blocked and not stopped: when it goes on, its move is the very next thing it does.
      await rig.startProcess('w1', { faults: [{ probe: 'projections.batch.before', hit: 1, kind: 'block', ms: 4000 }] })
      await rig.until(() => rig.wrote('acquired') >= cursors)
      await writeSome(traffic, 'before')
      await rig.until(() => rig.wrote('fault') > 0)
      await takeOver(rig)
      await writeSome(traffic, 'after')
    },
    shows: {
      // The compared position goes as well: it alone would refuse the second of two holders.
      'lock-without-fence': {
        caughtBy: 'applied once, in order',
        statements: { move: (text) => anyPosition(anyFence(text)) },
        inProcess: believeToHold,
      },
    },
  },
  'late holder of a quiet log': {
    tells: 'There is nothing to do when the lease of a process ends and another takes over; then events come, one at a time.',
    async play(rig, traffic) {
      await rig.startProcess('w1')
      await rig.until(() => rig.wrote('acquired') >= cursors)
      await writeSome(traffic, 'before')
      await rig.until(() => rig.scenario.isAtRest(rig, traffic))
      await takeOver(rig)
      for (let time = 0; time < 4; time++) {
        await writeSome(traffic, `after ${time}`)
        await rig.until(() => rig.scenario.isAtRest(rig, traffic), 500)
      }
    },
    shows: {
      'fence-not-compared': { caughtBy: 'moved by its holder', statements: { move: anyFence }, inProcess: believeToHold },
    },
  },

  // ---- parked keys and reads
  'parked and mended': {
    tells: 'A bad event of each of a few keys is parked, more come after it, and then its cause is mended.',
    async play(rig, { user: writer }) {
      await Promise.all([rig.startProcess('w1'), rig.startProcess('w2')])
      const some = keys.slice(0, 4)
      for (const key of some) await writer.write(transaction(`${key}/1`, key, 2, { isBad: true }))
      await rig.until(async () => (await rig.count('select count(*) as n from pawl.parked_key')) >= some.length * 4)
      for (const key of keys) await writer.write(transaction(`${key}/2`, key, 3))
      const parked = async () => (await rig.count('select count(*) as n from pawl.parked_event')) >= some.length * 4 * 4
      await rig.until(parked, 5000)
    },
    shows: {
      'unpark-out-of-order': rewrites('applied once, in order', {
        'next-unparking': swap('order by p.position', 'order by p.position desc'),
      }),
      'parked-for-ever': rewrites('all at rest', { 'unpark-key': swap('and not exists (', 'and false and not exists (') }),
      'parked-key-goes-on': replaces('handed over in order', SinkStore.prototype, { isParked: () => false }),
      'marks-of-others-cleared': rewrites('copied in the end', {
        'clear-dirty': swap(/and (d\.entity = \$\d+::text)/, 'and ($1 or true)'),
      }),
    },
  },
  'many parked and mended': {
    tells: 'A bad event of every key is parked, many come after it, and then the causes of all of them are mended at once.',
    async play(rig, { user: writer }) {
      await rig.startProcess('w1')
      const parked = `select count(*) as n from pawl.parked_event where name = '${names.sink}'`
      for (const key of keys) await writer.write(transaction(`${key}/1`, key, 1, { isBad: true }))
      await rig.until(async () => (await rig.count(parked)) >= keys.length)
      for (const key of keys) await writer.write(transaction(`${key}/2`, key, 10))
      await rig.until(async () => (await rig.count(parked)) >= keys.length * 11)
    },
    shows: { 'replayed-from-an-old-list': replaces('called in order', SinkStore.prototype, { isStoring: () => false }) },
  },
  'nobody runs yet': {
    tells: 'A reader waits for what it wrote while no process runs, and again when one does.',
    async play(rig, traffic) {
      for (let time = 0; time < 3; time++) await traffic.readOwnWrite(200)
      await rig.startProcess('w1')
      for (let time = 0; time < 5; time++) await traffic.readOwnWrite(10_000)
    },
    shows: { 'seen-before-applied': { caughtBy: 'seen and not too early', inRig: answerAtOnce } },
  },

  // ---- generations
  'rebuilt and switched': {
    tells: 'A generation is built beside the live one, made live, and the old one retired, while users append.',
    async play(rig, { user: writer }) {
      await Promise.all([rig.startProcess('w1'), rig.startProcess('w2')])
      for (const key of keys) await writer.write(transaction(`${key}/1`, key, 10))
      const applied = `select count(*) as n from torture.applied where name = '${names.folded}'`
      await rig.until(async () => (await rig.count(applied)) >= 120)
      await rig.startProcess(operatorSlot, { role: 'operator', how: 'rebuild' })
      for (let time = 0; time < 20 && rig.wrote('retired') === 0; time++) {
        await writer.write(transaction(`more/${time}`, 'k1', 2))
        await rig.until(() => rig.wrote('retired') > 0, 300)
      }
      await rig.stopProcess(operatorSlot)
    },
    shows: {
      'rebuild-from-now': rewrites('state is the fold', {
        'add-generation': swap('m.shard, 0', 'm.shard, (select max(c.position) from pawl.cursor_at c where c.name = $2::text)'),
      }),
    },
  },
  'rolled back while the live one stands': {
    tells: 'The live generation is paused, events come, and the one before it becomes live again.',
    async play(rig, { user: writer }) {
      await Promise.all([rig.startProcess('w1'), rig.startProcess('w2')])
      for (const key of keys) await writer.write(transaction(`${key}/1`, key, 10))
      await rig.startProcess(operatorSlot, { role: 'operator', how: 'roll back' })
      await rig.until(() => rig.wrote('paused') > 0)
      for (const key of keys) await writer.write(transaction(`${key}/2`, key, 10))
      await rig.until(() => rig.wrote('rolled back') > 0)
      await rig.stopProcess(operatorSlot)
    },
  },
  'parked while switched': {
    tells: 'A key is parked in both generations when the new one becomes live, and is mended later.',
    async play(rig, { user: writer }) {
      await Promise.all([rig.startProcess('w1'), rig.startProcess('w2')])
      await writer.write(transaction('good', 'k1', 3))
      await writer.write(transaction('bad', 'k1', 2, { isBad: true }))
      const parked = `select count(*) as n from pawl.parked_event where name = '${names.folded}'`
      await rig.until(async () => (await rig.count(parked)) >= 2)
      await rig.startProcess(operatorSlot, { role: 'operator', how: 'rebuild' })
      await rig.until(() => rig.wrote('retired') > 0)
      await rig.stopProcess(operatorSlot)
    },
  },
}

function untilHead(rig: Rig, position: number, timeoutMs?: number): Promise<boolean> {
  return rig.until(async () => (await rig.count('select position as n from pawl.sequencer')) >= position, timeoutMs)
}

async function writeSome({ user: writer }: LogTraffic, name: string): Promise<void> {
  for (const key of keys.slice(0, 4)) await writer.write(transaction(`${name}/${key}`, key, 3))
}

/** The lease of w1 ends, and w2 has everything that it held. */
async function takeOver(rig: Rig): Promise<void> {
  const holder = await holderOf(rig)
  await rig.startProcess('w2')
  await rig.until(() => rig.wrote('started', 'w2') > 0)
  await endLease(rig.admin, holder)
  await untilTakenFrom(rig, holder)
}

function holderOf(rig: Rig): Promise<number> {
  return rig.count(`select holder as n from pawl.cursor where name = '${names.sharded}' limit 1`)
}

async function untilTakenFrom(rig: Rig, holder: number): Promise<void> {
  await rig.until(async () => (await rig.count(`select count(*) as n from pawl.cursor where holder = ${holder}`)) === 0)
}

// ---- bugs that are no rewritten statement: a call that is made differently

function answerAtOnce(): void {
  Projections.prototype.seen = async () => undefined
}

function acknowledgeAtOnce(): void {
  const add = Acks.prototype.add
  Acks.prototype.add = function (this: Acks, events, lookedTo) {
    const fresh = add.call(this, events, lookedTo)
    for (const { position } of fresh) this.finish(position)
    return fresh
  }
}

function forgetKeys(): void {
  const add = SinkKeys.prototype.add
  SinkKeys.prototype.add = function (this: SinkKeys, event: LogEvent, isParked) {
    add.call(this, { ...event, key: `${event.key}/${event.position}` }, isParked)
  }
}

function effectsOutside({ url }: ChildOptions): void {
  const pool = new pg.Pool({ connectionString: url, application_name: 'canary' })
  Transaction.prototype.send = (text, values?: readonly unknown[]) => {
    void pool.query(text, [...(values ?? [])])
  }
}

/** What a reaction appends commits by itself, before its batch. */
function appendOutside({ url }: ChildOptions): void {
  const query = Transaction.prototype.query
  Transaction.prototype.query = async function (this: Transaction, text: string, values: readonly unknown[] = []) {
    if (!text.includes('insert into pawl.event ')) return query.call(this, text, values) as never
    return (await sendOutside(url, text, [...values] as string[])) as never
  }
}

/** The move commits by itself, before what the handler writes. */
function moveFirst({ url }: ChildOptions): void {
  const run = Transaction.prototype.run
  Transaction.prototype.run = async function (this: Transaction, statement, values) {
    if (statement.name !== 'move') return run.call(this, statement, values) as never
    return (await sendOutside(url, statement.text, bind(statement, values ?? {}))).rows as never
  }
}

/** It does not notice that its lease is over, and takes the cursor's row for its own, whatever its holder. */
function believeToHold(): void {
  HeldCursor.prototype.lose = () => undefined
  HeldCursor.prototype.reload = async function (this: HeldCursor, connection) {
    const [row] = await connection.run<Record<'position' | 'event_id', string> & { log_generation: number }>(
      cursorStatements.read,
      this.key,
    )
    const isMoved = Number(row!.position) !== this.place.position
    this.place = { position: Number(row!.position), eventId: row!.event_id, logGeneration: row!.log_generation }
    return { state: 'running', holdAt: undefined, isMoved }
  }
}

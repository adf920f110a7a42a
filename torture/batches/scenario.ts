// Batches under torture: three workers, two processes that start batches on the same tracks, and an operator.

import { probeNames } from 'pawl/testing'
import { drawFaults, probes, type Random } from '../plan.ts'
import { crashCases, type Round, type Scenario } from '../scenario.ts'
import { judge } from './checks.ts'
import { stories } from './stories.ts'
import { BatchesTraffic, names, starter, starters, worker } from './traffic.ts'

const inStarts = probes('batches: start.inserted start.items start.written')
const inSteps = probes('batches: boundary.written feed.written end.written')
const inEnds = probes('batches: settled end.before end.after')
const batchProbes = probeNames.filter((probe) => probe.startsWith('batches.'))

export const batches: Scenario<BatchesTraffic> = {
  name: 'batches',
  recorded: [
    {
      table: 'batch',
      columns: 'id track state revision allowance_ms deadline boundary_at closed_at',
      seen: {
        waiting: 'select count(*) from pawl.batch_item i where i.tenant = r.tenant and i.batch_id = r.id and i.outcome is null',
        ended: 'select count(i.outcome) from pawl.batch_item i where i.tenant = r.tenant and i.batch_id = r.id',
        allowed: '(extract(epoch from r.deadline - r.started_at) * 1000)::bigint',
        overdue: 'r.ended_at >= r.deadline',
      },
    },
    {
      table: 'batch_item',
      columns: 'batch_id n job_id outcome late_at restored_at',
      seen: {
        batch: 'select b.state from pawl.batch b where b.tenant = r.tenant and b.id = r.batch_id',
        job: 'select j.state from pawl.job j where j.tenant = r.tenant and j.id = r.job_id',
      },
    },
    { table: 'job', columns: 'id kind state holder' },
  ],
  // No key and no index that could refuse a second effect.
  ledgers: `
    create table torture.effect (batch bigint not null, n integer not null, xid text not null default pg_current_xact_id()::text);
    create table torture.crossed (batch bigint not null, xid text not null default pg_current_xact_id()::text);
    create table torture.restored (batch bigint not null, n integer not null, xid text not null default pg_current_xact_id()::text);
    create table torture.hook (
      batch bigint not null, state text not null, done integer not null, failed integer not null, waiting integer not null,
      marks bigint not null, xid text not null default pg_current_xact_id()::text
    );`,
  holds: 'job',
  programs: { worker, starter },
  aims: {
    slots: ['w1', 'w2', 'w3'],
    probes: {
      kill: [...probes('jobs: run.before run.after settle.before tx.before_commit batches: prepared'), ...inSteps, ...inEnds],
      pause: probes('jobs: run.after settle.before tx.before_commit batches: end.before prepared'),
      reset: [...probes('jobs: settle.before tx.before_commit'), ...inSteps, ...inEnds],
      terminate: probes('jobs: settle.before tx.handled batches: end.before boundary.written'),
      restart: probes('jobs: settle.before tx.before_commit batches: end.before'),
      'commit-unknown': probes('jobs: settle.before tx.before_commit batches: end.before boundary.written end.written prepared'),
      'sql-40001': probes('jobs: settle.before tx.before_commit batches: end.before feed.written end.written'),
      clock: probes('jobs: run.before settle.before batches: end.before'),
      block: probes('jobs: run.before batches: settled end.before'),
      drain: probes('jobs: run.before batches: feed.written'),
    },
    hitsMax: (probe) => (probe.startsWith('jobs.') ? 6 : 3),
    more: (storm) => {
      const draw = (random: Random) => {
        const kind = random.pick(['kill', 'kill', 'pause', 'reset', 'commit-unknown', 'sql-40001'] as const)
        return { probe: random.pick(kind === 'commit-unknown' ? inStarts.slice(2) : inStarts), hit: random.whole(2, 10), kind }
      }
      return Object.fromEntries(starters.map((slot) => [slot, drawFaults(slot, storm, 3, draw)]))
    },
  },
  traffic: BatchesTraffic,
  stories,
  matrix: {
    cases: crashCases({
      probes: batchProbes,
      provocations: { start: inStarts },
      withoutStatement: probes('batches: end.after'),
      once: probes('batches: watch.lost'),
    }),
    concurrency: 4,
    users: ({ provocation }, seed) => (provocation === 'start' ? { role: 'starter', how: String(seed) } : undefined),
    provoke,
    roundMs: () => 2500,
  },
  /** Every batch has ended and is closed, and nothing of one is to be done. */
  isAtRest: async (rig) =>
    (await rig.count(
      `select (select count(*) from pawl.batch where closed_at is null)
         + (select count(*) from pawl.job where kind not in ('pawl.batch.watch', 'pawl.batch.remove')) as n`,
    )) === 0,
  async hasShown(rig) {
    const [row] = await rig.query<{ shown: boolean }>(
      `select exists (select from pawl.refusal) and exists (select from pawl.batch_item where late_at is not null)
         and exists (select from pawl.job_attempt where kind like 'pawl.batch.%' and outcome = 'crashed')
         and array['finished', 'timed-out', 'replaced', 'cancelled', 'failed'] <@ array_agg(distinct state::text) as shown
       from pawl.batch`,
    )
    return row!.shown
  },
  judge,
}

/** One batch of each kind, and one that outlives its deadline. */
async function provoke({ user }: BatchesTraffic, { each: { provocation }, key }: Round): Promise<void> {
  if (provocation === 'start') return
  const items = Array.from({ length: 6 }, () => ({ ms: 5 }))
  for (const name of names) await user.start({ key: `${key}/${name}`, name, track: name, policy: 'replace', items })
  await user.start({ key: `${key}/late`, name: 'plain', track: 'late', policy: 'queue', items: [{ ms: 900 }], allowanceMs: 400 })
}

// Records under torture: three workers that apply submissions, two processes of users who race for the same scopes, an operator, and a
// reader who reads at any moment.

import { probeNames } from 'pawl/testing'
import { drawFaults, probes, type Random } from '../plan.ts'
import { crashCases, type Round, type Scenario } from '../scenario.ts'
import { judge } from './checks.ts'
import { stories } from './stories.ts'
import { client, clients, keyOf, type Marked, places, RecordsTraffic, worker } from './traffic.ts'

const inWork = probes('records: apply.before apply.written apply.chunk commit.before commit.written')
const inWrites = probes('records: validate.before submit.written append.written')
const recordProbes = probeNames.filter((probe) => probe.startsWith('records.'))
const ofUsers = [...probes('records: stage.committed validate.after'), ...inWrites]

const jobSql = (select: string) => `
  select ${select} from pawl.submission u join pawl.job j on j.tenant = u.tenant and j.id = u.job_id
  left join pawl.worker_process p on p.id = j.holder where u.tenant = r.tenant and u.id = r.submission`

export const records: Scenario<RecordsTraffic> = {
  name: 'records',
  recorded: [
    {
      table: 'submission',
      columns: 'id scope_id state revision',
      seen: {
        number: 'r.number',
        baseline: 'r.baseline',
        scope_revision: 'select s.revision from pawl.record_scope s where s.tenant = r.tenant and s.id = r.scope_id',
        // Versions that are there although the submission gives its slot back.
        left_over: `select count(*) from pawl.record_version v
          where r.state in ('failed', 'superseded') and v.tenant = r.tenant and v.submission = r.id`,
      },
    },
    // With the holder of its job at that moment, and the state of that job.
    {
      table: 'record_version',
      columns: 'tenant submission number',
      seen: { holder: jobSql('p.name'), job_state: jobSql('j.state') },
      isPerStatement: true,
    },
  ],
  // A row beside a put of a caller's own transaction. And a fault of the data: the database refuses a row until its cause is mended.
  ledgers: `
    create table torture.beside (mark text not null);
    create function torture.refuse() returns trigger language plpgsql as $$
    begin
      if exists (select from torture.mended m where m.what = new.data ->> 'mark') then
        return new;
      end if;
      raise exception 'not mended yet' using errcode = case when new.data ->> 'mark' like '%!' then '22003' else '40P01' end;
    end
    $$;
    create trigger torture_refuse before insert on pawl.record_version
    for each row when (new.data ->> 'mark' like '%!' or new.data ->> 'mark' like '%?') execute function torture.refuse();`,
  holds: 'job',
  programs: { worker, client },
  aims: {
    slots: ['w1', 'w2', 'w3'],
    probes: {
      kill: [
        ...inWork,
        ...probes('records: apply.before apply.written apply.chunk commit.after purge.chunk fail.written jobs: run.before'),
      ],
      // Stopped with a transaction open a process keeps its job until the server notices; before one, others take it over at once.
      pause: [...inWork, ...probes('records: apply.before apply.before apply.chunk commit.before')],
      reset: inWork,
      terminate: inWork,
      restart: probes('records: apply.written commit.written'),
      'commit-unknown': probes('records: apply.written commit.before commit.written fail.written'),
      'sql-40001': probes('records: apply.before apply.written commit.before commit.written fail.written'),
      clock: probes('records: apply.chunk commit.before'),
      block: probes('records: apply.before commit.before'),
      drain: probes('records: apply.chunk apply.before'),
    },
    hitsMax: (probe) => (probe.startsWith('records.apply') ? 7 : 1),
    more: (storm) => {
      const draw = (random: Random) => {
        const kind = random.pick(['kill', 'kill', 'pause', 'reset', 'commit-unknown', 'commit-unknown', 'sql-40001'] as const)
        // Where nothing is about to be committed, no commit can be lost and no statement can fail.
        const probe = random.pick(kind === 'commit-unknown' || kind === 'sql-40001' ? inWrites : ofUsers)
        return { probe, hit: random.whole(1, 6), kind }
      }
      return Object.fromEntries(clients.map((slot) => [slot, drawFaults(slot, storm, 3, draw)]))
    },
  },
  traffic: RecordsTraffic,
  stories,
  matrix: {
    cases: crashCases({
      probes: recordProbes,
      provocations: {
        restart: probes('records: restart.committed'),
        upload: probes('records: stage.committed validate.before validate.after'),
        submit: probes('records: submit.written'),
        put: probes('records: append.written'),
        append: probes('records: append.written'),
        'doomed files': probes('records: purge.chunk fail.written'),
      },
      withoutStatement: recordProbes.filter((probe) => /\.(committed|after|chunk)$/.test(probe)),
      once: recordProbes.filter((probe) => !/\.(stage|apply|commit)\.(?!after)/.test(probe)),
    }),
    concurrency: 2,
    users: ({ provocation }, seed) => (isUsers(provocation) ? { role: 'client', how: `${provocation} ${seed}` } : undefined),
    provoke,
    roundMs: () => 0,
    release: (traffic) => traffic.freeSlots(),
  },
  /** Nothing is submitting, nothing is to be applied, and what is committed has left no staged rows. */
  isAtRest: async (rig) =>
    (await rig.count(
      `select (select count(*) from pawl.submission where state = 'submitting')
         + (select count(*) from pawl.job where kind = 'pawl.records.apply' and state <> 'dead')
         + (select count(*) from pawl.submission u join pawl.submission_row r on r.tenant = u.tenant and r.submission = u.id
            where u.state = 'submitted') as n`,
    )) === 0,
  /** Something was taken over, refused by a fence, given up, resumed, superseded; what else a storm must show comes before these. */
  async hasShown(rig) {
    const [row] = await rig.query<{ shown: boolean }>(
      `select exists (select from pawl.refusal)
         and exists (select from pawl.job_attempt where kind = 'pawl.records.apply' and outcome = 'crashed')
         and array['failed', 'superseded'] <@ array_agg(distinct c.new ->> 'state')
         and bool_or(c.old ->> 'state' = 'failed' and c.new ->> 'state' = 'submitting') as shown
       from torture.change c where c.source = 'submission'`,
    )
    return row!.shown
  },
  judge,
}

const isUsers = (provocation: string): boolean => provocation !== 'work' && provocation !== 'doomed files'

/** Four chunks, so that there is a middle. */
const rowsOfFile = 55

/** One file for each place at once, and reads until the probe is reached or everything is at rest. */
async function provoke(traffic: RecordsTraffic, { each: { provocation }, key, number, isReached }: Round): Promise<void> {
  const { rig, user: actor } = traffic
  const isFiles = !isUsers(provocation)
  const send = async (at: (typeof places)[0]) => {
    const name = `${key}/${at.place}`
    const rows = Array.from({ length: rowsOfFile }, (_, row): Marked => [keyOf(row), name])
    if (provocation === 'doomed files') rows[rowsOfFile - 1] = [keyOf(rowsOfFile - 1), `${name}!`]
    const upload = await actor.upload({ key: name, at, rows })
    if (upload?.state === 'validated') await actor.submit(upload)
  }
  if (isFiles) await Promise.all(places.map(send))
  await rig.until(async () => {
    await actor.read(places[number % places.length]!)
    return isReached() || (isFiles && (await rig.scenario.isAtRest(rig, traffic)))
  }, 4000)
}

// Documents under torture: three workers that refresh, two processes that write the same documents, and a writer in the rig.

import { drawFaults, keeperFaults, probes, type Random } from '../plan.ts'
import { crashCases, type Scenario } from '../scenario.ts'
import { judge } from './checks.ts'
import { stories } from './stories.ts'
import { DocumentsTraffic, refreshName, worker, writer, writers } from './traffic.ts'

const slots = ['w1', 'w2', 'w3']
const inWrites = probes('documents: found')
const inRefreshes = probes('documents: refresh.written projections: state.taken state.handled')

export const documents: Scenario<DocumentsTraffic> = {
  name: 'documents',
  recorded: [
    { table: 'document', columns: 'id uuid type revision receipt keys body' },
    { table: 'document_ref', columns: 'from_id path to_id' },
    { table: 'cursor', columns: 'name holder' },
  ],
  ledgers: '',
  holds: 'cursor',
  programs: { worker, writer },
  aims: {
    slots,
    probes: {
      kill: [...inRefreshes, ...probes('events: sequence.before projections: batch.handled')],
      pause: [...inRefreshes, ...probes('projections: batch.before')],
      reset: [...inRefreshes, ...probes('projections: batch.handled')],
      terminate: inRefreshes,
      restart: inRefreshes,
      'commit-unknown': inRefreshes,
      'sql-40001': inRefreshes,
      clock: inRefreshes,
      block: inRefreshes,
      drain: inRefreshes,
    },
    hitsMax: () => 6,
    more: (storm) => {
      const draw = (random: Random) => {
        const kind = random.pick(['kill', 'kill', 'pause', 'reset', 'commit-unknown', 'commit-unknown', 'sql-40001'] as const)
        return { probe: inWrites[0]!, hit: random.whole(5, 40), kind }
      }
      return {
        ...keeperFaults(slots, storm, 10),
        ...Object.fromEntries(writers.map((slot) => [slot, drawFaults(slot, storm, 3, draw)])),
      }
    },
  },
  traffic: DocumentsTraffic,
  stories,
  matrix: {
    cases: crashCases({
      probes: [...inWrites, ...inRefreshes],
      provocations: { write: inWrites },
      withoutStatement: [],
      once: [],
    }),
    concurrency: 4,
    users: ({ provocation }, seed) => (provocation === 'write' ? { role: 'writer', how: String(seed) } : undefined),
    provoke: ({ user }, { key }) => renameAll(user, key),
    roundMs: () => 1500,
  },
  /** Every event has a position, its marks are made, and none is left. */
  async isAtRest(rig, { user }) {
    const [row] = await rig.query<{ parked: number; left: number }>(
      `select (select count(*) from pawl.parked_key)::integer as parked, (
         (select count(*) from pawl.dirty) + (select count(*) from pawl.event)
         - coalesce((select min(c.position) from pawl.cursor_at c where c.name = '${refreshName}'), 0)
       )::integer as left`,
    )
    // An event at which three holders died is left to a person.
    if (row!.parked > 0)
      await user.pawl.projections.unpark(refreshName, { by: 'operator', reason: 'torture' }).catch(() => undefined)
    return row!.parked + row!.left === 0
  },
  /** The server may be down just now. */
  hasShown: (rig) =>
    judge(rig, { isDrained: false, notStopped: [] }).then(
      ({ shown }) => !Object.values(shown).includes(0),
      () => false,
    ),
  judge,
}

let provoked = 0

/** A school, all that refers to it, and its next name. */
async function renameAll(user: DocumentsTraffic['user'], key: string): Promise<void> {
  const mark = `provoked ${key}`
  const schoolId = 100
  const { uuid } = await user.post('School', { schoolId, mark })
  await user.post('Session', { name: 'Fall', school: { schoolId }, mark: `${mark} session` })
  await user.post('Offering', { code: 'a', session: { name: 'Fall', schoolId }, mark: `${mark} offering` })
  await user.put('School', uuid!, { schoolId: 1000 + provoked++, mark: `${mark} renamed` })
}

import { type Context, setupOf, sized } from '../harness/context.ts'
import { now, pause } from '../harness/machine/clock.ts'
import { mark } from '../harness/mark.ts'
import { type Bar, measure } from '../harness/report/measure.ts'
import { interleave, type Sample } from '../harness/rounds.ts'
import { Child } from '../harness/system/child.ts'
import { pawl } from '../harness/system/systems.ts'
import type { Group } from './group.ts'

const contenders = [true, false].flatMap((hasCursor) =>
  [1, 10, 100].map((queues) => ({
    name: `${queues} ${queues === 1 ? 'queue' : 'queues'}${hasCursor ? ' and a cursor' : ''}`,
    queues,
    hasCursor,
  })),
)
const [own, ...others] = contenders.map(({ name }) => name)
const rows: readonly { name: string; metric: string; unit: string; bars?: readonly Bar[] }[] = [
  { name: 'idle statements', metric: 'statements', unit: 'per second', bars: [{ atMost: 4 }] },
  { name: 'idle transaction ids', metric: 'xids', unit: 'per second', bars: [{ atMost: 0.2 }] },
  { name: 'idle WAL', metric: 'wal', unit: 'bytes per second' },
  { name: 'idle connections', metric: 'connections', unit: 'connections', bars: [{ atMost: 8 }] },
]

/** What one process costs its server while there is nothing to do. One round: these are counts, not times. */
export const idle: Group = {
  name: 'idle',
  measures: rows.map(({ name }) => name),
  async run(context) {
    const results = await interleave(
      context,
      'idle',
      contenders.map(({ name, queues, hasCursor }) => ({ name, run: () => idleFor(context, queues, hasCursor) })),
      1,
    )
    return rows.map((row) =>
      measure({ ...row, better: 'lower', results, pawl: own!, limits: others, notes: [`${own}, over a minute`] }),
    )
  },
}

function idleFor(context: Context, queues: number, hasCursor: boolean): Promise<Sample> {
  return context.server.withDatabase(async (database) => {
    const child = new Child(pawl)
    const read = async () => {
      const [row] = await database.query<{ xid: number; connections: number }>(
        `select pg_snapshot_xmax(pg_current_snapshot())::text::float8 as xid,
          (
            select count(*)::integer
            from pg_stat_activity a
            where a.datname = current_database() and a.backend_type = 'client backend' and a.pid <> pg_backend_pid()
          ) as connections -- ${mark}`,
      )
      return { ...row!, ...(await database.counted()), at: now() }
    }
    const autovacuum = async (is: 'off' | 'on') => {
      await database.query(`alter system set autovacuum = ${is}`)
      await database.query('select pg_reload_conf()')
    }
    try {
      // Its rounds over the catalogs of a new database take up to 20 transaction ids a minute, and Pawl 8.
      await autovacuum('off')
      await child.prepare(setupOf(context, database))
      await child.call('run', 'idle', queues, hasCursor)
      // A start asks and writes what an idle process does not.
      await pause(sized(context, 5_000, 2_000))
      const from = await read()
      await pause(sized(context, 60_000, 3_000))
      const to = await read()
      const seconds = (to.at - from.at) / 1_000
      return {
        statements: (to.statements - from.statements) / seconds,
        xids: (to.xid - from.xid) / seconds,
        wal: (to.walBytes - from.walBytes) / seconds,
        connections: to.connections,
      }
    } finally {
      await child.stop()
      await autovacuum('on')
    }
  }, true)
}

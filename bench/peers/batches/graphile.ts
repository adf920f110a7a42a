// A batch by hand on graphile-worker with batched claims and completions: each task adds one to its batch's counter, and the one that makes it
// full enqueues the end. A task that is killed after its count is counted twice.

import pg from 'pg'
import { now } from '../../harness/machine/clock.ts'
import { load } from '../../harness/system/load.ts'
import { type Peer, payloadOf, type Setup } from '../../harness/system/protocol.ts'

interface Helpers {
  query(text: string, values: readonly unknown[]): Promise<{ readonly rows: readonly { is_last: boolean }[] }>
  addJob(task: string): Promise<unknown>
}

interface Graphile {
  run(options: object): Promise<{ stop(): Promise<void> }>
  makeWorkerUtils(options: object): Promise<{
    migrate(): Promise<void>
    addJobs(jobs: readonly { identifier: string; payload: unknown }[]): Promise<unknown>
    release(): Promise<void>
  }>
  Logger: new (factory: () => () => void) => object
}

const callSize = 1_000
const localQueue = { size: 1_000 }

export function open(): Peer {
  let graphile: Graphile
  let pool: pg.Pool
  let url: string

  return {
    async prepare(setup: Setup) {
      graphile = await load<Graphile>('graphile-worker')
      url = setup.url
      pool = new pg.Pool({ connectionString: url, max: setup.connections })
      await pool.query(
        'create table batch_run (id integer primary key, total integer not null, ended integer not null default 0)',
      )
    },
    async run(_task: string, count: number, concurrency: number) {
      const logger = new graphile.Logger(() => () => {})
      const utils = await graphile.makeWorkerUtils({ pgPool: pool, logger })
      await utils.migrate()
      let to = 0
      let onEnd = () => {}
      const ended = new Promise<void>((resolve) => {
        onEnd = resolve
      })
      const runner = await graphile.run({
        connectionString: url,
        logger,
        noHandleSignals: true,
        concurrency,
        maxPoolSize: concurrency,
        preset: { worker: { concurrentJobs: concurrency, localQueue, completeJobBatchDelay: 0, failJobBatchDelay: 0 } },
        parsedCronItems: [],
        taskList: {
          item: async (_payload: unknown, helpers: Helpers) => {
            const { rows } = await helpers.query(
              'update batch_run set ended = ended + 1 where id = $1 returning ended = total as is_last',
              [1],
            )
            if (rows[0]!.is_last) await helpers.addJob('end')
          },
          end: async () => {
            to = now()
            onEnd()
          },
        },
      })
      const jobs = Array.from({ length: count }, (_, n) => ({ identifier: 'item', payload: payloadOf(n) }))
      const from = now()
      await pool.query('insert into batch_run (id, total) values (1, $1)', [count])
      for (let at = 0; at < count; at += callSize) await utils.addJobs(jobs.slice(at, at + callSize))
      const startedAt = now()
      await ended
      await runner.stop()
      await utils.release()
      return { from, startedAt, to }
    },
    close: () => pool.end(),
  }
}

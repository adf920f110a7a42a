// DBOS: durable workflows on a queue, which are more than jobs. The variant is its poll in milliseconds; without one it has its default, a second.

import pg from 'pg'
import { load } from '../harness/system/load.ts'
import { delay, type Handler, type Peer, payloadOf, type Setup, type Started } from '../harness/system/protocol.ts'

type Workflow = (payload: { n: number }) => Promise<void>

interface Dbos {
  setConfig(config: object): void
  registerWorkflow(run: Workflow, options: object): Workflow
  registerQueue(name: string, options: object): Promise<unknown>
  launch(): Promise<void>
  shutdown(): Promise<void>
}

interface DbosClient {
  enqueue(options: object, payload: object): Promise<unknown>
  destroy(): Promise<void>
}

export function open(started: Started, variant: string | undefined): Peer {
  let dbos: Dbos
  let client: DbosClient
  let pool: pg.Pool
  let does: Handler = 'noop'

  return {
    async prepare({ url, connections }: Setup) {
      const loaded = await load<{ DBOS: Dbos; DBOSClient: { create(options: object): Promise<DbosClient> } }>(
        '@dbos-inc/dbos-sdk',
      )
      dbos = loaded.DBOS
      pool = new pg.Pool({ connectionString: url, max: connections })
      dbos.setConfig({ name: 'bench', systemDatabaseUrl: url, logLevel: 'error' })
      const run: Workflow = async ({ n }) => {
        started(n)
        await delay(does)
      }
      dbos.registerWorkflow(run, { name: 'bench' })
      // Its tables are made by launch; it takes no job before its queue is registered.
      await dbos.launch()
      client = await loaded.DBOSClient.create({ systemDatabaseUrl: url, systemDatabasePool: pool })
    },
    async fill(count) {
      let next = 0
      const lane = async () => {
        while (next < count) await client.enqueue({ workflowName: 'bench', queueName: 'bench' }, payloadOf(next++))
      }
      await Promise.all(Array.from({ length: 24 }, lane))
    },
    async work({ handler, concurrency }) {
      does = handler
      const poll = variant === undefined ? {} : { minPollingIntervalMs: Number(variant) }
      await dbos.registerQueue('bench', { workerConcurrency: concurrency, ...poll })
    },
    async remaining() {
      const { rows } = await pool.query<{ some: boolean }>(
        `select exists (select from dbos.workflow_status where status in ('ENQUEUED', 'PENDING')) as some`,
      )
      return rows[0]!.some ? 1 : 0
    },
    async enqueue(n) {
      await client.enqueue({ workflowName: 'bench', queueName: 'bench' }, payloadOf(n))
      return undefined
    },
    async close() {
      await dbos.shutdown()
      await client.destroy()
      await pool.end()
    },
  }
}

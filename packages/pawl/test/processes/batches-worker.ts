// A worker or a starter of batches in a process of its own, for tests that kill it. Its argument is a BatchesSpec as JSON. It says one JSON object
// a line on stdout, and hears words on stdin: `stop` drains and ends.

import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { createPawl, type Item, type TrackPolicy, type WorkerOptions } from 'pawl'
import { installProbe, type ProbeName } from 'pawl/testing'
import pg from 'pg'

export interface BatchesSpec {
  readonly url: string
  readonly shape: 'run' | 'tx'
  readonly worker: WorkerOptions
  /** It kills itself when it comes to this probe for the given time; 'returned': after a start in a caller's transaction, before its commit. */
  readonly killAt?: { readonly probe: ProbeName | 'returned'; readonly hit: number }
  /** Each item's job is taken from its first handler, which goes on; the process kills itself in every fiftieth. */
  readonly isRough?: boolean
  /** It does not work but starts a batch of this many items. */
  readonly start?: { readonly items: number; readonly policy: TrackPolicy; readonly isInTx: boolean }
}

export type BatchesSaid =
  | { readonly event: 'ready' | 'started' | 'stopped' }
  | { readonly event: 'killing'; readonly probe: string }
  | { readonly event: 'job.refused'; readonly detail: unknown }

const spec = JSON.parse(process.argv[2]!) as BatchesSpec
// Writes to a pipe are synchronous here, so what was said before a kill is heard.
const say = (said: BatchesSaid) => process.stdout.write(`${JSON.stringify(said)}\n`)
const own = new pg.Pool({ connectionString: spec.url, max: 5 })

function killMyself(probe: string): never {
  say({ event: 'killing', probe })
  process.kill(process.pid, 'SIGKILL')
  // The signal arrives at once; nothing of ours may run until it does.
  for (;;);
}

let hits = 0
installProbe((name) => {
  if (name === spec.killAt?.probe && ++hits === spec.killAt.hit) killMyself(name)
})

/** Takes the job of an item away from the handler that calls it, whose settle must then be refused. */
async function roughen({ n, batch }: Item): Promise<void> {
  await own.query('insert into delivery values ($1)', [n])
  // One statement: a kill between two would lose a number, and with it the kill that is due.
  const { rows } = await own.query<{ number: string }>(
    `with first as (insert into first_delivery values ($1) on conflict do nothing returning n)
     select nextval('first_deliveries') as number from first`,
    [n],
  )
  if (rows.length === 0) return
  if (Number(rows[0]!.number) % 50 === 0) killMyself('item')
  await own.query(
    `update pawl.job set state = 'ready', fence = fence + 1, holder = null, run_until = null, claimed_at = null
     where id = (select job_id from pawl.batch_item where batch_id = $1 and n = $2) and tenant = '' and state = 'running'`,
    [batch, n],
  )
  await sleep(5)
}

const pawl = createPawl({ databaseUrl: spec.url })
pawl.on('job.refused', (detail) => say({ event: 'job.refused', detail: JSON.parse(JSON.stringify(detail)) as unknown }))
const effectSql = 'insert into effect values ($1)'
pawl.batches.define('reparse', {
  prepare: () => ({ backup: 1 }),
  boundary: () => ({ deleted: 1 }),
  item: {
    retry: { attempts: 1000, crashes: 1000, initialMs: 1 },
    ...(spec.shape === 'tx'
      ? {
          tx: async (item: Item, tx: { query(text: string, values: unknown[]): Promise<unknown> }) => {
            await tx.query(effectSql, [item.n])
            if (spec.isRough) await roughen(item)
            return { ones: 1 }
          },
        }
      : {
          run: async (item: Item) => {
            if (spec.isRough) await roughen(item)
            return { ones: 1 }
          },
        }),
  },
  onEnd: ({ id, counts }, tx) => tx.query('insert into hook values ($1, $2)', [id, counts.waiting]),
})
const worker = pawl.worker(spec.worker)

createInterface({ input: process.stdin }).on('line', (word) => {
  if (word === 'stop') void stop()
})
// Nobody is there any more to tell us to stop.
process.stdin.on('end', () => process.exit(1))

if (spec.start === undefined) {
  await worker.start()
  say({ event: 'ready' })
} else await start(spec.start)

async function start({ items, policy, isInTx }: NonNullable<BatchesSpec['start']>): Promise<void> {
  const keys = Array.from({ length: items }, (_, index) => ({ key: `file-${index + 1}` }))
  if (isInTx) {
    const client = await own.connect()
    await client.query('begin')
    await pawl.batches.start('reparse', keys, { policy, tx: client })
    if (spec.killAt?.probe === 'returned') killMyself('returned')
    await client.query('commit')
    client.release()
  } else await pawl.batches.start('reparse', keys, { policy })
  say({ event: 'started' })
}

async function stop(): Promise<void> {
  await worker.stop()
  say({ event: 'stopped' })
  await pawl.close()
  await own.end()
  process.exit(0)
}

// The projections and sinks that projector processes run, and what a test and such a process say to each other. Effects are rows of tables
// without unique keys: a ledger must not enforce what it is there to show.

import type { LogEvent, Pawl, PawlOptions, WorkerOptions } from 'pawl'
import type { ProbeName } from 'pawl/testing'
import type pg from 'pg'

export type Scene = 'wallets' | 'mail' | 'bystander'

export interface ProjectorSpec {
  readonly pawl: Omit<PawlOptions, 'logger'>
  readonly runner: WorkerOptions
  readonly scene: Scene
  /** At this probe, when it comes there for the given time, the process kills itself, or holds until it hears `go`. */
  /** 'stop': it stops itself with SIGSTOP. Once continued, it sends its next statement before it hears of anything that happened since. */
  readonly at?: { readonly probe: ProbeName; readonly hit: number; readonly what: 'kill' | 'hold' | 'stop' }
}

export type ProjectorSaid =
  | { readonly event: 'ready'; readonly worker: number }
  | { readonly event: 'killing' | 'holding'; readonly probe?: ProbeName; readonly position?: number }
  | { readonly event: 'handled'; readonly position: number; readonly key: string }
  | { readonly event: 'stopped' }
  | {
      readonly event: 'cursor.acquired' | 'cursor.lost' | 'cursor.refused' | 'projection.parked'
      readonly detail: Readonly<Record<string, unknown>>
    }

export interface SceneWorld {
  readonly say: (said: ProjectorSaid) => void
  readonly going: Promise<void>
  /** Connections of the application's own: the outside, as far as Pawl knows. */
  readonly effects: pg.Pool
}

export const sceneSql = `
  create table wallet (id text primary key, balance bigint not null, changes integer not null);
  create table entry (position bigint not null, wallet text not null, amount bigint not null, pid integer not null);
  create table mail (position bigint not null, key text not null, idempotency_key text not null, pid integer not null,
    at timestamptz not null default clock_timestamp())`

interface Data {
  readonly amount?: number
  /** Says `holding` and waits for `go`, in processes that hear it. */
  readonly hold?: boolean
  /** Kills the process that handles it. */
  readonly kill?: boolean
}

const walletSql = (wallet: string) => `insert into ${wallet} as w (id, balance, changes) values ($1, $2, 1)
  on conflict (id) do update set balance = w.balance + excluded.balance, changes = w.changes + 1`

const tables = [
  { name: 'wallet', key: ['id'], columns: ['id', 'balance', 'changes'] },
  { name: 'entry', key: ['position'], columns: ['position', 'wallet', 'amount'] },
]

export function defineScene(pawl: Pawl, scene: Scene, world: SceneWorld, generation = 1): void {
  const retry = { attempts: 3, crashes: 3, initialMs: 10, jitter: false } as const
  // Beside the wallets, one that has nothing to do with them.
  if (scene === 'bystander')
    pawl.projections.define('quiet', {
      retry,
      on: {
        Quiet: ({ position, key }, tx) => tx.send('insert into mail values ($1, $2, $3, $4)', [position, key, '', process.pid]),
      },
    })
  if (scene !== 'mail') {
    pawl.projections.define('wallets', {
      retry,
      timeout: '4s',
      generation,
      tables,
      each: async (event, tx, { table }) => {
        const { amount = 1 } = event.data as Data
        tx.send(walletSql(table('wallet')), [event.key, amount])
        tx.send(`insert into ${table('entry')} values ($1, $2, $3, $4)`, [event.position, event.key, amount, process.pid])
        await act(event, world)
      },
    })
    return
  }
  pawl.projections.sink('mail', {
    retry,
    concurrency: 4,
    handle: async (event, { idempotencyKey }) => {
      await act(event, world)
      await world.effects.query('insert into mail values ($1, $2, $3, $4)', [
        event.position,
        event.key,
        idempotencyKey,
        process.pid,
      ])
      world.say({ event: 'handled', position: event.position, key: event.key })
    },
  })
}

async function act(event: LogEvent, { say, going }: SceneWorld): Promise<void> {
  const { hold, kill } = event.data as Data
  if (hold) {
    say({ event: 'holding', position: event.position })
    await going
  }
  if (!kill) return
  say({ event: 'killing', position: event.position })
  process.kill(process.pid, 'SIGKILL')
  for (;;);
}

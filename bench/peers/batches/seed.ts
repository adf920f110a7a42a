// Seed 004's way to count what has ended: each task locks the one row of its batch, reads its counter and writes it back. It has 32 connections,
// and named statements, which Django has not. With `effect` a task writes one row first, in the same transaction.

import pg from 'pg'
import { now } from '../../harness/machine/clock.ts'
import { effectTable, insertEffect, type Peer, type Setup } from '../../harness/system/protocol.ts'

const table = `create table reparse_meta (id bigint generated always as identity primary key, num_files integer not null,
  files_completed integer not null default 0, finished boolean not null default false)`

export function open(): Peer {
  let url: string

  async function complete(client: pg.Client, effect: string | undefined, n: number): Promise<void> {
    await client.query('begin')
    if (effect !== undefined) await client.query({ name: 'effect', text: insertEffect, values: [n] })
    const { rows } = await client.query<{ id: string; num_files: number; files_completed: number }>({
      name: 'lock',
      text: 'select id, num_files, files_completed from reparse_meta order by id desc limit 1 for update',
    })
    const { id, num_files, files_completed } = rows[0]!
    await client.query({
      name: 'save',
      text: 'update reparse_meta set files_completed = $2, finished = $3 where id = $1',
      values: [id, files_completed + 1, files_completed + 1 === num_files],
    })
    await client.query('commit')
  }

  return {
    async prepare(setup: Setup) {
      url = setup.url
    },
    async run(_task: string, count: number, connections: number, effect?: string) {
      const clients = Array.from({ length: connections }, () => new pg.Client({ connectionString: url }))
      try {
        for (const client of clients) await client.connect()
        await clients[0]!.query(`${table}; ${effectTable}`)
        await clients[0]!.query('insert into reparse_meta (num_files) values ($1)', [count])
        let left = count
        const from = now()
        await Promise.all(
          clients.map(async (client) => {
            while (left-- > 0) await complete(client, effect, left)
          }),
        )
        const to = now()
        const { rows } = await clients[0]!.query<{ finished: boolean }>('select finished from reparse_meta')
        if (!rows[0]!.finished) throw new Error('the counter is wrong')
        return { from, to }
      } finally {
        for (const client of clients) await client.end().catch(() => undefined)
      }
    },
  }
}

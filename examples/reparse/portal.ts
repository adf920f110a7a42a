// The data portal of the example: files of records in a storage, what was parsed of them in tables, and the batch that parses files again.

import { existsSync } from 'node:fs'
import { readFile, rename, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type BatchKind, NonRetryable, type Pawl } from 'pawl'
import type pg from 'pg'

export const schema = `
  create schema portal;
  create table portal.file (name text primary key, status text not null);
  create table portal.record (file text not null references portal.file, line integer not null, cents integer not null, primary key (file, line));
  create table portal.mail (id integer generated always as identity, text text not null)`

/** Lines as a state sends them: 'T1|1|1250'. */
export function fileContent(records: number, { bad }: { bad?: number } = {}): string {
  const line = (n: number) => `T1|${n}|${n === bad ? 'n/a' : 1000 + n}`
  return Array.from({ length: records }, (_, index) => line(index + 1)).join('\n')
}

/** While this file exists, the storage does not answer this batch. */
export function stallFile(storage: string, batch: string, name: string): string {
  return join(storage, `${batch}-${name}.stall`)
}

/** A client that does not stop at a signal, as many do not. */
async function download(storage: string, batch: string, name: string): Promise<string> {
  while (existsSync(stallFile(storage, batch, name))) await sleep(20)
  return readFile(join(storage, name), 'utf8')
}

function parse(content: string): { line: number; cents: number }[] {
  return content.split('\n').map((text, index) => {
    const [type, line, cents] = text.split('|')
    if (type !== 'T1' || !/^\d+$/.test(cents!)) throw new NonRetryable(`line ${index + 1}: '${cents}' is no amount`)
    return { line: Number(line), cents: Number(cents) }
  })
}

/** `storage` is a folder. */
export function defineReparse(pawl: Pawl, pool: pg.Pool, storage: string): BatchKind {
  return pawl.batches.define('reparse', {
    // The seed's numbers: 10 s a file, and twice the median time of a record.
    allowance: { perItemMs: 10_000, perUnitMs: 0.5574226379394531, safety: 2 },
    // Reversible, and at least once: a second run replaces the first one's file.
    prepare: async (batch) => {
      const path = join(storage, `backup-${batch.id}.json`)
      if (existsSync(join(storage, 'full'))) throw new NonRetryable('the disk for backups is full')
      const { rows } = await pool.query('select file, line, cents from portal.record order by file, line')
      await writeFile(`${path}.part`, JSON.stringify(rows))
      await rename(`${path}.part`, path)
      return { path, records: rows.length }
    },
    // The destructive step: it is committed with the boundary, or not at all.
    boundary: async ({ id }, tx) => {
      const { rowCount } = await tx.query(
        `delete from portal.record r using pawl.batch_item i
         where i.tenant = '' and i.batch_id = $1::bigint and r.file = i.key`,
        [id],
      )
      return { deleted: rowCount }
    },
    item: {
      concurrency: 4,
      tx: async (item, tx) => {
        const records = parse(await download(storage, item.batch, item.key))
        await tx.query(
          'insert into portal.record select $1, r.line, r.cents from jsonb_to_recordset($2) r(line integer, cents integer)',
          [item.key, JSON.stringify(records)],
        )
        await tx.query("update portal.file set status = 'parsed' where name = $1", [item.key])
        return { created: records.length }
      },
    },
    // Only files that are still as the start left them.
    restore: async (items, tx) => {
      for (const { key, before } of items)
        await tx.query("update portal.file set status = $2 where name = $1 and status = 'reparse requested'", [key, before])
    },
    onEnd: async ({ by, state, counts, sums }, tx) => {
      const text = `to ${by}: ${state}, ${counts.done} of ${counts.total} files, ${sums.created ?? 0} records`
      await tx.query('insert into portal.mail (text) values ($1)', [text])
    },
  })
}

// A data portal parses files again: backup, delete, parse in parallel, one run at a time. A second admin is refused, a worker is killed, a file is
// bad, a backup fails, and a run times out while three of its files are still in progress. Run it with:
// node scripts/run.mjs examples/reparse/main.ts
// It starts a PostgreSQL of its own, unless DATABASE_URL names one.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { startEmbedded } from '@pawl/server/embedded'
import { type BatchReport, createPawl, isPawlError, type NewItem, type Started, silentLogger } from 'pawl'
import { moveClock } from 'pawl/testing'
import pg from 'pg'
import { defineReparse, fileContent, schema, stallFile } from './portal.ts'

const recordsOfFile = 300
const say = (line: string) => process.stdout.write(`${line}\n`)

const dir = await mkdtemp(join(tmpdir(), 'pawl-example-'))
const embedded =
  process.env.DATABASE_URL === undefined ? await startEmbedded({ dir: join(dir, 'pg'), database: 'pawl' }) : undefined
const databaseUrl = process.env.DATABASE_URL ?? embedded!.url
const pawl = createPawl({ databaseUrl, logger: silentLogger })
await pawl.migrate()
const pool = new pg.Pool({ connectionString: databaseUrl })
const reparse = defineReparse(pawl, pool, dir)
const children: ChildProcess[] = []

function startWorker(name: string): ChildProcess {
  const file = fileURLToPath(new URL('./worker.ts', import.meta.url))
  const child = spawn(process.execPath, ['--import', 'tsx', '--conditions=@pawl/source', file, databaseUrl, dir, name], {
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  children.push(child)
  return child
}

async function until(isSo: () => Promise<boolean>): Promise<void> {
  while (!(await isSo())) await sleep(20)
}

/** Waits until the batch has ended and its mail is written. */
async function ended(id: string): Promise<BatchReport> {
  await until(async () => {
    const { endedAt, phase } = await pawl.batches.get(id)
    return endedAt !== null && phase === null
  })
  return pawl.batches.get(id)
}

interface Request {
  /** The storage does not answer for these. */
  readonly stalled?: readonly string[]
  readonly policy?: 'refuse' | 'queue'
}

/** What an admin does: the files are marked and the batch starts, in one transaction. */
async function request(
  by: string,
  names: readonly string[],
  { stalled = [], policy = 'refuse' }: Request = {},
): Promise<Started> {
  const client = await pool.connect()
  try {
    await client.query('begin')
    const { rows } = await client.query<{ name: string; status: string }>(
      'select name, status from portal.file where name = any ($1) order by name for update',
      [names],
    )
    await client.query("update portal.file set status = 'reparse requested' where name = any ($1)", [names])
    const items: NewItem[] = rows.map(({ name, status }) => ({ key: name, units: recordsOfFile, before: status }))
    const started = await pawl.batches.start(reparse, items, { by, policy, tx: client })
    for (const name of stalled) await writeFile(stallFile(dir, started.id, name), '')
    await client.query('commit')
    return started
  } catch (error) {
    await client.query('rollback')
    throw error
  } finally {
    client.release()
  }
}

async function storageAnswers(batch: string, names: readonly string[]): Promise<void> {
  for (const name of names) await rm(stallFile(dir, batch, name))
}

function counted({ state, isSuccess, counts, sums }: BatchReport): string {
  const { done, failed, waiting, late } = counts
  const parts = Object.entries({ done, failed, waiting, late }).filter(([, count]) => count > 0)
  return `${state}${isSuccess ? ', a success' : ''}: ${parts.map(([name, count]) => `${count} ${name}`).join(', ')}; records: ${sums.deleted ?? 0} deleted, ${sums.created ?? 0} created`
}

async function readers(): Promise<string> {
  const { rows } = await pool.query(
    'select count(*)::integer as records, count(distinct file)::integer as files from portal.record',
  )
  return `${rows[0].records} records of ${rows[0].files} files`
}

try {
  await pool.query(schema)
  const names = Array.from({ length: 12 }, (_, index) => `q${String(index + 1).padStart(2, '0')}.txt`)
  for (const name of names) await writeFile(join(dir, name), fileContent(recordsOfFile))
  await pool.query("insert into portal.file select unnest($1::text[]), 'received'", [names])

  say('Twelve files are parsed for the first time.')
  const victim = startWorker('victim')
  say(`  ${counted(await ended((await request('anna', names)).id))}`)

  say('A backup fails: nothing is deleted, and the files are as they were.')
  await writeFile(join(dir, 'full'), '')
  const doomed = await ended((await request('ben', names)).id)
  say(`  ${counted(doomed)}; ${doomed.endReason!.split('\n')[0]}`)
  const { rows: statuses } = await pool.query('select status, count(*)::integer as files from portal.file group by status')
  say(`  files: ${statuses.map(({ status, files }) => `${files} ${status}`).join(', ')}; readers see ${await readers()}`)
  await rm(join(dir, 'full'))

  say('Anna chooses all of them, Ben three of them a moment later.')
  await writeFile(join(dir, 'q07.txt'), fileContent(recordsOfFile, { bad: 42 }))
  const slow = names.slice(0, 3)
  const annas = await request('anna', names, { stalled: slow })
  const { allowanceMs } = await pawl.batches.get(annas.id)
  say(`  anna: ${annas.state}, for ${Math.round(allowanceMs / 1000)} s at the latest`)
  const refused = await request('ben', slow).catch((error: unknown) => error)
  if (!isPawlError(refused, 'PAWL_TRACK_BUSY')) throw refused
  const { blocker, name } = refused.details
  say(`  ben: ${refused.code}, ${blocker === annas.id ? "anna's batch" : blocker} ('${name}') runs on the track`)

  say('Two workers parse. One is killed with -9 while it waits for three files.')
  await until(async () => (await pawl.batches.get(annas.id)).counts.done > 0)
  startWorker('survivor')
  await until(async () => (await pawl.batches.get(annas.id)).counts.waiting === 3)
  victim.kill('SIGKILL')
  await once(victim, 'exit')
  const half = await pawl.batches.get(annas.id)
  const { path, records } = half.prepared as { path: string; records: number }
  say(`  ${counted(half)}; in the backup: ${(JSON.parse(await readFile(path, 'utf8')) as unknown[]).length} of ${records}`)
  await storageAnswers(annas.id, slow)
  say(`  ${counted(await ended(annas.id))}`)
  for (const { key, error } of (await pawl.batches.items(annas.id, { outcome: 'failed' })).items)
    say(`  failed: ${key}, ${error!.split('\n')[0]}`)
  say(`  readers see ${await readers()}`)

  say('The bad file is corrected, and what failed runs again.')
  await writeFile(join(dir, 'q07.txt'), fileContent(recordsOfFile))
  const again = await pawl.batches.rerun(annas.id, { only: 'failed', by: 'anna' })
  say(`  ${counted(await ended(again.id))}`)
  say(`  readers see ${await readers()}`)

  say('The storage does not answer for three files, until the deadline has passed. Ben waits in the queue.')
  const wedged = await request('anna', names.slice(0, 5), { stalled: slow })
  await until(async () => (await pawl.batches.get(wedged.id)).counts.waiting === 3)
  const bens = await request('ben', slow, { policy: 'queue' })
  say(`  ben: ${bens.state}`)
  await moveClock(pool, 3_600_000)
  const [late, next] = [await ended(wedged.id), await ended(bens.id)]
  say(`  anna: ${counted(late)}`)
  say(`  ben: ${counted(next)}`)

  say('Now the storage answers the first run.')
  await storageAnswers(wedged.id, slow)
  await until(async () => (await pawl.batches.get(wedged.id)).counts.late === 3)
  const { items } = await pawl.batches.items(wedged.id, { outcome: 'late' })
  say(`  refused: ${items.map(({ key }) => key).join(', ')}`)
  say(`  anna: ${counted(await pawl.batches.get(wedged.id))}`)
  say(`  ben: ${counted(await pawl.batches.get(bens.id))}`)
  say(`  readers see ${await readers()}`)
  say(`  stuck: ${(await pawl.batches.stuck()).items.map(({ key }) => key).join(', ') || 'nothing'}`)

  say('Each end has one mail.')
  const { rows: mails } = await pool.query('select text from portal.mail order by id')
  for (const { text } of mails) say(`  ${text}`)
} finally {
  for (const child of children) child.kill('SIGKILL')
  await pool.end()
  await pawl.close()
  await embedded?.stop('fast')
  await rm(dir, { recursive: true, force: true })
}

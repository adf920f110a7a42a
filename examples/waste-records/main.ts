// Summary logs and waste records: a service that takes 15,000 rows at once. Two people race, a worker is killed in the middle, a log with
// errors is refused, a corrected one changes what changed, and the same log as a workbook changes nothing. Run it with:
// node scripts/run.mjs examples/waste-records/main.ts
// It starts a PostgreSQL of its own, unless DATABASE_URL names one.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { startEmbedded } from '@pawl/server/embedded'
import { createPawl, isPawlError, silentLogger } from 'pawl'
import { defineWasteRecords, summaryLog } from './summary-logs.ts'
import { summaryWorkbook } from './workbook.ts'

const rows = 15_000
const say = (line: string) => process.stdout.write(`${line}\n`)

const dir = await mkdtemp(join(tmpdir(), 'pawl-example-'))
const embedded = process.env.DATABASE_URL === undefined ? await startEmbedded({ dir, database: 'pawl' }) : undefined
const databaseUrl = process.env.DATABASE_URL ?? embedded!.url
const pawl = createPawl({ databaseUrl, logger: silentLogger })
await pawl.migrate()
const set = defineWasteRecords(pawl)
const scope = pawl.records.in(set, { organisation: 'ORG-17', registration: 'REG-4' })
const children: ChildProcess[] = []

function startWorker(name: string): ChildProcess {
  const file = fileURLToPath(new URL('./worker.ts', import.meta.url))
  const child = spawn(process.execPath, ['--import', 'tsx', '--conditions=@pawl/source', file, databaseUrl, name], {
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  children.push(child)
  return child
}

async function until(look: () => Promise<boolean>): Promise<void> {
  while (!(await look())) await sleep(5)
}

/** What readers see: how many records, and the total of what is not excluded. */
async function totals(): Promise<string> {
  let count = 0
  let grams = 0n
  for await (const text of scope.export({ format: 'ndjson' })) {
    for (const line of text.trimEnd().split('\n')) {
      const { netWeight, isHazardous } = JSON.parse(line) as { netWeight: string; isHazardous: boolean }
      count++
      const [whole, fraction = ''] = netWeight.split('.')
      if (!isHazardous) grams += BigInt(whole! + fraction.padEnd(3, '0'))
    }
  }
  return `${count} records, ${grams / 1000n}.${String(grams % 1000n).padStart(3, '0')} tonnes included`
}

try {
  say('Two people upload a summary log for the same registration.')
  const attributes = { accreditation: 'ACC-1' }
  const [anna, ben] = await Promise.all([
    scope.upload(summaryLog(rows, { notes: 'by anna' }), { format: 'ndjson', name: 'anna.ndjson', by: 'anna', attributes }),
    scope.upload(summaryLog(rows, { notes: 'by ben' }), { format: 'ndjson', name: 'ben.ndjson', by: 'ben', attributes }),
  ])
  for (const { by, state, counts } of [anna, ben]) say(`  ${by}: ${state}, ${counts.created} to create`)

  say('Both submit at once. One of them has the slot, the other is told.')
  const [annas, bens] = await Promise.allSettled([anna, ben].map(({ id, revision }) => pawl.records.submit(id, { revision })))
  const [winner, loser, refused] = annas!.status === 'fulfilled' ? [anna, ben, bens!] : [ben, anna, annas!]
  if (refused.status === 'fulfilled') throw new Error('Both have the slot.')
  if (!isPawlError(refused.reason, 'PAWL_SCOPE_BUSY')) throw refused.reason
  const isTold = refused.reason.details.holder === winner.id
  say(`  the other: ${refused.reason.code}, ${isTold ? "the winner's submission is being applied" : 'by whom?'}`)

  say('The worker is killed in the middle.')
  const victim = startWorker('victim')
  await until(async () => (await pawl.records.get(winner.id)).progress.applied > 0)
  victim.kill('SIGKILL')
  await once(victim, 'exit')
  const half = await pawl.records.get(winner.id)
  say(
    `  ${half.state}, ${half.progress.applied < half.progress.of ? 'some' : 'all'} of ${half.progress.of} changes written; readers see ${await totals()}`,
  )

  say('Another worker goes on from there.')
  startWorker('survivor')
  const done = await pawl.records.ended(winner.id)
  say(`  ${done.state}: ${done.counts.created} created; readers see ${await totals()}`)

  say('The log of the other was compared with an empty registration.')
  await pawl.records.submit(loser.id).catch((error: unknown) => say(`  ${isPawlError(error) ? error.code : String(error)}`))
  const rebased = await pawl.records.rebase(loser.id)
  say(
    `  compared anew: ${rebased.counts.created} to create, ${rebased.counts.updated} to update, ${rebased.counts.unchanged} unchanged`,
  )

  say('The winner uploads a log with a bad cell, one without its last rows, and one with corrections.')
  const about = { format: 'ndjson', by: winner.by! } as const
  const notes = `by ${winner.by}`
  const spoilt = await scope.upload(summaryLog(rows, { notes, spoil: 42 }), about)
  const [fault] = (await pawl.records.errors(spoilt.id)).items
  say(`  ${spoilt.state}: line ${fault!.line}, ${fault!.column} '${fault!.value}': ${fault!.reason}`)
  const short = await scope.upload(summaryLog(rows - 3, { notes }), about)
  const gone = (await pawl.records.errors(short.id)).items.map(({ value }) => value)
  say(`  ${short.state}: ${short.counts.missing} left out (${gone.join(', ')})`)
  const corrected = await scope.upload(summaryLog(rows, { notes, correct: 5 }), about)
  say(`  ${corrected.state}: ${corrected.counts.updated} to update, ${corrected.counts.unchanged} unchanged`)
  const [first] = (await pawl.records.rows(corrected.id, 'updated', { limit: 1 })).items
  say(
    `  ${first!.type} ${first!.key}: ${first!.changes.map(({ field, before, after }) => `${field} ${String(before)} -> ${String(after)}`).join(', ')}`,
  )
  await pawl.records.submit(corrected.id)
  await pawl.records.ended(corrected.id)
  say(`  readers see ${await totals()}`)

  say('The same log comes as a workbook, whole and cut short.')
  const book = await summaryWorkbook(rows, { notes, correct: 5 })
  const whole = await scope.upload([book], { format: 'xlsx', by: winner.by! })
  say(
    `  ${whole.state}: ${whole.counts.updated} to update, ${whole.counts.unchanged} unchanged; sheets ignored: ${whole.ignoredSheets.join(', ')}`,
  )
  const cut = await scope.upload([book.subarray(0, book.length / 2)], { format: 'xlsx', by: winner.by! })
  say(`  ${cut.state}: ${cut.counts.rows} rows; ${cut.error!.includes('cut short') ? 'it may have been cut short' : cut.error}`)

  say('Everything that was is still there.')
  for (const { number, status, by, data } of (await scope.history('received', '10000')).items)
    say(`  version ${number} ${status} by ${by === winner.by ? 'the winner' : by}: ${String(data?.netWeight)}`)
  const versions = (await scope.submissions()).items
    .filter(({ state }) => state === 'submitted')
    .map(({ counts }) => counts.created + counts.updated)
  say(
    `  ${versions.reduce((sum, each) => sum + each, 0)} versions in ${versions.length} submissions; sound: ${(await scope.audit())?.isSound}`,
  )
} finally {
  for (const child of children) child.kill('SIGKILL')
  await pawl.close()
  await embedded?.stop('fast')
  await rm(dir, { recursive: true, force: true })
}

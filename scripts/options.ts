// docs/reference/options.md, written from the tables that check the options: node scripts/run.mjs scripts/options.ts

import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import * as batches from '../packages/pawl/src/batches/options.ts'
import * as documents from '../packages/pawl/src/documents/options.ts'
import { appendTable } from '../packages/pawl/src/events/append.ts'
import { eraseTable } from '../packages/pawl/src/events/erase.ts'
import { ingestTable } from '../packages/pawl/src/events/ingest.ts'
import { keepTable } from '../packages/pawl/src/events/maintenance.ts'
import * as jobs from '../packages/pawl/src/jobs/options.ts'
import { onceTable } from '../packages/pawl/src/kernel/once.ts'
import type { Option, Table } from '../packages/pawl/src/kernel/options.ts'
import { alertsTable, migrateTable, pawlTable } from '../packages/pawl/src/pawl-options.ts'
import * as projections from '../packages/pawl/src/projections/options.ts'
import { xlsxTable } from '../packages/pawl/src/records/formats/xlsx/options.ts'
import * as records from '../packages/pawl/src/records/options.ts'
import { stopTable, workerTable } from '../packages/pawl/src/worker-options.ts'
import { root } from './phase.ts'

export const optionsFile = join(root, 'docs', 'reference', 'options.md')

/** Every public call, with the table that checks its options; or, if it has none, one line of doc. */
export const calls: Readonly<Record<string, Readonly<Record<string, Table | string>>>> = {
  Pawl: {
    'createPawl(options)': pawlTable,
    'pawl.migrate(options)': migrateTable,
    'pawl.alerts(options)': alertsTable,
    'pawl.for(tenant)': 'The same for one tenant: its jobs, events, projections, records, batches, documents and alerts.',
    'pawl.on(event, listener)':
      'Calls the listener with each event of this process, such as job.failed. Returns a function that ends it.',
    'pawl.close()': 'Stops workers and closes the connections.',
    'once(tx, options, work)': onceTable,
    'toTx(tx)': 'The transaction of any supported library as one with query(text, values).',
    'drizzleTx(tx, sql)': 'A transaction of Drizzle, to pass as tx.',
    'isPawlError(error, code)': 'Whether an error is a PawlError, and of this code.',
  },
  Worker: {
    'pawl.worker(options)': workerTable,
    'worker.stop(options)': stopTable,
    'worker.start()': 'Starts to run jobs, projections, reactions and sinks.',
    'worker.whenIdle()': 'Resolves when no job is claimable, running or unsettled here. For tests.',
    'worker.held()': 'Returns the cursors that this process holds.',
    'worker.metrics()': 'Returns the counts since the start.',
    'worker.suspects()': 'Returns the jobs whose handlers may have left an error that nothing caught.',
    'worker.lastWords(reason)':
      'Closes the worker as dead before an uncaught error ends the process: others take its jobs at once.',
  },
  Jobs: {
    'pawl.jobs.define(kind, options)': jobs.kindTable,
    'pawl.jobs.handle(kind, options)': jobs.handlerTable,
    'pawl.jobs.enqueue(kind, payload, options)': jobs.enqueueTable,
    'pawl.jobs.enqueueMany(kind, payloads, options)': jobs.enqueueTable,
    'pawl.jobs.list(options)': jobs.listTable,
    'pawl.jobs.get(id)': 'Returns a job, or undefined.',
    'pawl.jobs.attempts(id)': 'Returns the ended attempts of a job, oldest first.',
    'pawl.jobs.why(id)': 'Says why a job is in its state, and what to do.',
    'pawl.jobs.retry(id, options)': jobs.changeTable,
    'pawl.jobs.cancel(id, options)': jobs.changeTable,
  },
  Events: {
    'pawl.events.append(events, options)': appendTable,
    'pawl.events.ingest(events, options)': ingestTable,
    'pawl.events.erase(options)': eraseTable,
    'pawl.events.whoHoldsBack(options)': keepTable,
    'pawl.events.retain(options)': keepTable,
    'pawl.events.audit()': 'Checks that the log has every event once. Reads all of it.',
    'pawl.events.lag()': 'Returns the last position and how many events have none yet.',
    'toCloudEvent(event, source)': 'An event in the form of CloudEvents.',
  },
  Projections: {
    'pawl.projections.define(name, options)': projections.logTable,
    "pawl.projections.define(name, { kind: 'state', ...options })": projections.stateTable,
    'pawl.projections.react(name, options)': projections.reactionTable,
    'pawl.projections.sink(name, options)': projections.sinkTable,
    'pawl.projections.status(name)': 'Returns the state and lag of each cursor.',
    'pawl.projections.seen(name, token, options)': projections.seenTable,
    'pawl.projections.parked(name, options)': projections.parkedTable,
    'pawl.projections.pause(name, options)': projections.pauseTable,
    'pawl.projections.resume(name, options)': projections.resumeTable,
    'pawl.projections.skip(name, options)': projections.skipTable,
    'pawl.projections.unpark(name, options)': projections.unparkTable,
    'pawl.projections.forget(name, options)': projections.actTable,
    'pawl.projections.rebuild(name, options)': projections.actTable,
    'pawl.projections.compare(name, options)': projections.compareTable,
    'pawl.projections.switchTo(name, options)': projections.switchTable,
    'pawl.projections.rollBack(name, options)': projections.generationTable,
    'pawl.projections.retire(name, options)': projections.generationTable,
    'expectRows(result, count)': 'Throws unless a statement changed this many rows.',
  },
  Batches: {
    'pawl.batches.define(name, options)': batches.batchTable,
    'pawl.batches.handle(batch, handlers)': batches.handlersTable,
    'pawl.batches.start(batch, items, options)': batches.startTable,
    'pawl.batches.get(id)': 'Returns a batch with its counts and sums.',
    'pawl.batches.items(id, options)': batches.itemsTable,
    'pawl.batches.list(options)': batches.listTable,
    'pawl.batches.why(id)': 'Says why a batch is in its state.',
    'pawl.batches.stuck(options)': batches.stuckTable,
    'pawl.batches.cancel(id, options)': batches.endTable,
    'pawl.batches.extend(id, options)': batches.extendTable,
    'pawl.batches.rerun(id, options)': batches.rerunTable,
  },
  Documents: {
    'pawl.documents.define(type, options)': documents.typeTable,
    'pawl.documents.receipt()':
      'Draws a number for a request that has arrived: of two writes without ifMatch the later one wins.',
    'pawl.documents.post(type, body, options)': documents.writeTable,
    'pawl.documents.put(type, uuid, body, options)': documents.writeTable,
    'pawl.documents.postMany(type, bodies, options)': documents.manyTable,
    'pawl.documents.putAll(changes, options)': documents.manyTable,
    'pawl.documents.delete(type, uuid, options)': documents.deleteTable,
    'pawl.documents.get(type, uuidOrKey, options)': documents.getTable,
    'pawl.documents.list(type, options)': documents.listTable,
    'pawl.documents.referrers(type, uuid, options)': documents.referrersTable,
    'pawl.documents.verify(options)': documents.verifyTable,
    'pawl.documents.dependents(type, uuid)': 'Counts the documents that a rename would reach, by level and type.',
    'pawl.documents.types()': 'Returns the types as they are stored.',
  },
  Records: {
    'pawl.records.define(name, options)': records.recordSetTable,
    'pawl.records.in(set, scope)': 'Returns one scope of a set.',
    'pawl.records.sets()': 'Returns the declarations of all sets, with a JSON Schema per type.',
    'pawl.records.get(id)': 'Returns a submission.',
    'pawl.records.why(id)': 'Says why a submission is in its state, and what to do.',
    'pawl.records.rebase(id)': 'Compares the rows of a submission with the scope as it is now: a new submission.',
    'pawl.records.submissions(set, options)': records.submissionsTable,
    'pawl.records.rows(id, kind, options)': records.pageTable,
    'pawl.records.errors(id, options)': records.pageTable,
    'pawl.records.cancel(id, options)': records.cancelSubmissionTable,
    'pawl.records.submit(id, options)': records.submitTable,
    'pawl.records.resume(id, options)': records.submitTable,
    'pawl.records.ended(id, options)': records.endedTable,
    'scope.upload(body, options)': records.uploadTable,
    'scope.submissions(options)': records.submissionsTable,
    'scope.put(row, options)': records.putTable,
    'scope.append(rows, options)': records.appendTable,
    'scope.list(options)': records.listRecordsTable,
    'scope.history(type, key, options)': records.pageTable,
    'scope.export(options)': records.exportTable,
    'scope.erase(type, key, options)': records.eraseTable,
    'scope.get(type, key, at)': 'Returns a record, or undefined.',
    'scope.diff(type, key, from, to)': 'Returns what changed between two versions.',
    'scope.state()': 'Returns the revision, the number and the attributes of the scope.',
    'scope.audit()': 'Counts all records again and compares.',
    'xlsx(options)': xlsxTable,
  },
  Testing: {
    'runAll(pawl, options)': workerTable,
    'moveClock(db, shiftMs)': 'Moves the time of the database.',
    'endLease(db, worker)': 'Ends the lease of a worker, as if its process had hung.',
    'installProbe(probe)': 'Calls a function at each crash point.',
    'resetConnections()': 'Cuts the connections of this process.',
  },
  'Tools: pawl/admin': {
    'readMigrations()': 'The migrations of this release.',
    'migrate(database, options)': 'pawl.migrate() for a database without a Pawl.',
    'exportSql(migrations, applied)': 'The migrations as one script, for a tool such as Flyway.',
    'readSchema(client)': 'The schema of a database, as data.',
    'releasedSchema()': 'The schema of this release, as data.',
    'classify(error)': 'Whether an error of PostgreSQL is transient, permanent, of the connection, or another.',
    'describeError(error)': 'An error and its causes as a string of limited length, for logs.',
    'durationMs(duration)': "The milliseconds of a duration such as '15m'.",
  },
}

export interface Row {
  /** As a message names it, such as 'retry.attempts' and 'tables[].name'. */
  readonly path: string
  readonly option: Option<unknown>
}

/** The options of a table, each followed by those within it. */
export function rowsOf(table: Table, prefix = ''): Row[] {
  return Object.entries(table).flatMap(([name, option]) => [
    { path: prefix + name, option },
    ...(option.table === undefined ? [] : rowsOf(option.table, `${prefix}${name}.`)),
    ...itemsOf(option, prefix + name),
  ])
}

function itemsOf({ expects, item }: Option<unknown>, path: string): Row[] {
  if (item?.table === undefined) return []
  return rowsOf(item.table, expects === 'an array' ? `${path}[].` : `${path}.<name>.`)
}

export function page(): string {
  const parts = Object.entries(calls).map(([title, group]) => `## ${title}\n\n${sections(group).join('\n\n')}`)
  return `${head}\n\n${parts.join('\n\n')}\n`
}

const head = `# Calls and their options

Every call checks its options before it does anything. An option that does not exist or has a wrong value is \`PAWL_CONFIG\`, with the option, the
value and what it must be. \`tuning\` has what is rarely needed. The error codes are in [errors.md](errors.md).

This page is written from the tables that check the options: change those, then run \`node scripts/run.mjs scripts/options.ts\`.`

/** Calls with the same options share a section. */
function sections(group: Readonly<Record<string, Table | string>>): string[] {
  const tables = new Map<Table | string, string[]>()
  for (const [call, table] of Object.entries(group)) tables.set(table, [...(tables.get(table) ?? []), call])
  return [...tables].map(([table, names]) => {
    const title = `### ${names.map((name) => `\`${name}\``).join(', ')}`
    if (typeof table === 'string') return `${title}\n\n${table}`
    const lines = rowsOf(table).map(({ path, option }) => `| ${cells(path, option).join(' | ')} |`)
    return [title, '', '| option | what it does | must be | default |', '| --- | --- | --- | --- |', ...lines].join('\n')
  })
}

function cells(path: string, option: Option<unknown>): string[] {
  return [`\`${path}\``, option.doc, option.table === undefined ? option.expects : 'an object', defaultOf(option)].map((cell) =>
    cell.replaceAll('|', '\\|'),
  )
}

function defaultOf({ default: value, otherwise, isRequired }: Option<unknown>): string {
  if (value !== undefined) return `\`${typeof value === 'string' ? `'${value}'` : String(value)}\``
  return otherwise ?? (isRequired ? 'required' : '')
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) writeFileSync(optionsFile, page())

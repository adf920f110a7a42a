// docs/reference/options.md, written from the tables that check the options: node scripts/run.mjs scripts/options.ts

import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { appendTable } from '../packages/pawl/src/events/append.ts'
import { eraseTable } from '../packages/pawl/src/events/erase.ts'
import { ingestTable } from '../packages/pawl/src/events/ingest.ts'
import { keepTable } from '../packages/pawl/src/events/maintenance.ts'
import * as jobs from '../packages/pawl/src/jobs/options.ts'
import { onceTable } from '../packages/pawl/src/kernel/once.ts'
import type { Option, Table } from '../packages/pawl/src/kernel/options.ts'
import { alertsTable, migrateTable, pawlTable } from '../packages/pawl/src/pawl-options.ts'
import * as projections from '../packages/pawl/src/projections/options.ts'
import * as records from '../packages/pawl/src/records/options.ts'
import { xlsxTable } from '../packages/pawl/src/records/xlsx/options.ts'
import { root } from './phase.ts'

export const optionsFile = join(root, 'docs', 'reference', 'options.md')

/** Every public call that takes options, with the table that checks them. */
export const calls: Readonly<Record<string, Readonly<Record<string, Table>>>> = {
  Pawl: {
    'createPawl(options)': pawlTable,
    'pawl.migrate(options)': migrateTable,
    'pawl.alerts(options)': alertsTable,
    'once(tx, options, work)': onceTable,
  },
  Jobs: {
    'pawl.jobs.define(kind, options)': jobs.kindTable,
    'pawl.jobs.handle(kind, options)': jobs.handlerTable,
    'pawl.jobs.enqueue(kind, payload, options)': jobs.enqueueTable,
    'pawl.jobs.enqueueMany(kind, payloads, options)': jobs.enqueueTable,
    'pawl.jobs.list(options)': jobs.listTable,
    'pawl.jobs.retry(id, options)': jobs.changeTable,
    'pawl.jobs.cancel(id, options)': jobs.cancelTable,
    'pawl.jobs.worker(options)': jobs.workerTable,
    'worker.stop(options)': jobs.stopTable,
  },
  Events: {
    'pawl.events.append(events, options)': appendTable,
    'pawl.events.ingest(events, options)': ingestTable,
    'pawl.events.erase(options)': eraseTable,
    'pawl.events.whoHoldsBack(options)': keepTable,
    'pawl.events.retain(options)': keepTable,
  },
  Projections: {
    'pawl.projections.define(name, options)': projections.logTable,
    "pawl.projections.define(name, { kind: 'state', ...options })": projections.stateTable,
    'pawl.projections.sink(name, options)': projections.sinkTable,
    'pawl.projections.runner(options)': projections.runnerTable,
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
  },
  Records: {
    'pawl.records.define(name, options)': records.recordSetTable,
    'pawl.records.submissions(set, options)': records.submissionsTable,
    'pawl.records.rows(id, kind, options)': records.pageTable,
    'pawl.records.errors(id, options)': records.pageTable,
    'pawl.records.submit(id, options)': records.submitTable,
    'pawl.records.resume(id, options)': records.submitTable,
    'pawl.records.ended(id, options)': records.endedTable,
    'scope.upload(body, options)': records.uploadTable,
    'scope.submissions(options)': records.submissionsTable,
    'scope.put(row, options)': records.putTable,
    'scope.append(rows, options)': records.appendTable,
    'scope.list(options)': records.listRecordsTable,
    'scope.history(type, key, options)': records.historyTable,
    'scope.export(options)': records.exportTable,
    'scope.erase(type, key, options)': records.eraseTable,
    'xlsx(options)': xlsxTable,
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

const head = `# Options

Every call checks its options before it does anything. An option that does not exist or has a wrong value is \`PAWL_CONFIG\`, with the option, the
value and what it must be. \`tuning\` has what is rarely needed. The error codes are in [errors.md](errors.md).

This page is written from the tables that check the options: change those, then run \`node scripts/run.mjs scripts/options.ts\`.`

/** Calls with the same options share a section. */
function sections(group: Readonly<Record<string, Table>>): string[] {
  const tables = new Map<Table, string[]>()
  for (const [call, table] of Object.entries(group)) tables.set(table, [...(tables.get(table) ?? []), call])
  return [...tables].map(([table, names]) => {
    const lines = rowsOf(table).map(({ path, option }) => `| ${cells(path, option).join(' | ')} |`)
    const title = `### ${names.map((name) => `\`${name}\``).join(', ')}`
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

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  writeFileSync(optionsFile, page())
  const rows = new Set(
    Object.values(calls)
      .flatMap((group) => Object.values(group).flatMap((table) => rowsOf(table)))
      .map(({ option }) => option),
  )
  console.log(`docs/reference/options.md: ${rows.size} options`)
}

// `pawl migrate`: migrates a database to this release, or prints what that would do.

import type { Pawl } from 'pawl'
import { migrate as applyMigrations, exportSql, readMigrations } from 'pawl/admin'
import pg from 'pg'
import type { Answer } from './answers.ts'
import { command, toggle } from './command.ts'
import { type DatabaseFlags, findDatabase, requireDatabase, withoutPassword, withPawl } from './database.ts'
import { exitCodes } from './failure.ts'
import type { Column, Terminal } from './terminal.ts'

export const migrate = command({
  name: 'migrate',
  summary: 'Migrate the database to the schema of this release. Several processes may run it at once.',
  examples: ['pawl migrate', 'pawl migrate --dry-run', 'pawl migrate --sql > pawl.sql'],
  flags: {
    sql: toggle('--sql', 'print the SQL instead of running it: all migrations, or those that the given database lacks'),
    dryRun: toggle('--dry-run', 'list the missing migrations and change nothing'),
  },
  run: async ({ terminal, database, flags }): Promise<Answer | number> => {
    if (flags.sql) return printSql(terminal, database)
    return flags.dryRun ? missingSteps(database) : migrateNow(terminal, database)
  },
})

async function printSql(terminal: Terminal, database: DatabaseFlags): Promise<number> {
  const found = await findDatabase(database)
  const applied = found === undefined ? new Set<string>() : await appliedSteps(found.url)
  const isComplete = readMigrations().every(({ name }) => applied.has(name))
  // A comment, so that a file of it is still SQL that runs.
  terminal.line(
    isComplete ? `-- No migration is missing in ${withoutPassword(found!.url)}.` : exportSql(readMigrations(), applied),
  )
  return exitCodes.ok
}

async function missingSteps(database: DatabaseFlags): Promise<Answer> {
  const { url } = await requireDatabase(database)
  const applied = await appliedSteps(url)
  const steps = readMigrations().map(({ name }) => ({ name, state: applied.has(name) ? 'applied' : 'missing' }))
  const missing = steps.filter(({ state }) => state === 'missing')
  return stepsAnswer(
    steps,
    { missing: missing.map(({ name }) => name), applied: [...applied].sort() },
    missing.length === 0 ? 'The schema is up to date.' : `${missing.length} to apply; nothing was changed. Run 'pawl migrate'.`,
  )
}

/** Said when another process holds the lock of migrations. */
export const waitText = 'another process is migrating this database; waiting for it ...'

async function migrateNow(terminal: Terminal, database: DatabaseFlags): Promise<Answer> {
  const report = await withPawl({ database, tenant: undefined }, (_handle, pawl: Pawl) =>
    applyMigrations(pawl.config.direct, {
      onStep: (name) => terminal.say(`applying ${name} ...`),
      onWait: () => terminal.say(waitText),
    }),
  )
  const before = new Set(report.alreadyThere)
  const steps = [...report.alreadyThere, ...report.applied]
    .sort()
    .map((name) => ({ name, state: before.has(name) ? 'already there' : 'applied' }))
  const said = report.applied.length === 0 ? 'The schema was already up to date.' : 'The schema is now up to date.'
  return stepsAnswer(steps, report, said)
}

interface Step {
  readonly name: string
  readonly state: string
}

const stepColumns: readonly Column<Step>[] = [
  { title: 'migration', value: ({ name }) => name },
  { title: 'state', value: ({ state }) => state, paint: ({ state }) => (state === 'missing' ? 'yellow' : 'green') },
]

function stepsAnswer(steps: readonly Step[], json: object, said: string): Answer {
  return { json, show: (terminal) => terminal.table(stepColumns, steps), say: [said] }
}

async function appliedSteps(url: string): Promise<Set<string>> {
  const client = new pg.Client({ connectionString: url, application_name: 'pawl cli', connectionTimeoutMillis: 5000 })
  await client.connect()
  try {
    const { rows: there } = await client.query("select to_regclass('pawl.migration') is not null as there")
    if (there[0]?.there !== true) return new Set()
    const { rows } = await client.query<{ name: string }>('select name from pawl.migration')
    return new Set(rows.map(({ name }) => name))
  } finally {
    await client.end()
  }
}

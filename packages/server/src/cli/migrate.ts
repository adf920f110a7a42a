// `pawl migrate`: bring a database up to this release, or say what that would take.

import type { Pawl } from 'pawl'
import { exportSql, readMigrations } from 'pawl/admin'
import pg from 'pg'
import { findDatabase, requireDatabase, withoutPassword, withPawl } from './database.ts'
import type { CommandAdder, Context } from './program.ts'

interface Flags {
  readonly sql?: boolean
  readonly dryRun?: boolean
}

export function addMigrate(adder: CommandAdder): void {
  const command = adder.add(undefined, 'migrate', {
    summary: 'Migrate the database to the schema of this release. Several processes may run it at once.',
    examples: ['pawl migrate', 'pawl migrate --dry-run', 'pawl migrate --sql > pawl.sql'],
  })
  command
    .option('--sql', 'print the SQL instead of running it: all migrations, or those that the given database lacks')
    .option('--dry-run', 'list the missing migrations and change nothing')
  adder.does<Flags>(command, async (context) => {
    if (context.flags.sql) return printSql(context)
    if (context.flags.dryRun) return printMissing(context)
    return migrateNow(context)
  })
}

async function printSql({ terminal, database }: Context<Flags>): Promise<void> {
  const found = await findDatabase(database)
  const applied = found === undefined ? new Set<string>() : await appliedSteps(found.url)
  if (readMigrations().every(({ name }) => applied.has(name))) {
    // A file of this is still SQL that runs, and says why it does nothing.
    terminal.line(`-- No migration is missing in ${withoutPassword(found!.url)}.`)
    return
  }
  terminal.line(exportSql(readMigrations(), applied))
}

async function printMissing({ terminal, database }: Context<Flags>): Promise<void> {
  const { url } = await requireDatabase(database)
  const applied = await appliedSteps(url)
  const steps = readMigrations().map(({ name }) => ({ name, state: applied.has(name) ? 'applied' : 'missing' }))
  const missing = steps.filter(({ state }) => state === 'missing')
  printSteps(terminal, steps, { missing: missing.map(({ name }) => name), applied: [...applied].sort() })
  terminal.say(
    missing.length === 0 ? 'The schema is up to date.' : `${missing.length} to apply; nothing was changed. Run 'pawl migrate'.`,
  )
}

/** Said when another process holds the lock of migrations. */
export const waitText = 'another process is migrating this database; waiting for it ...'

async function migrateNow({ terminal, database }: Context<Flags>): Promise<void> {
  const report = await withPawl({ database, tenant: undefined }, (_handle, pawl: Pawl) =>
    pawl.migrate({
      onStep: (name) => terminal.say(`applying ${name} ...`),
      onWait: () => terminal.say(waitText),
    }),
  )
  const before = new Set(report.alreadyThere)
  const steps = [...report.alreadyThere, ...report.applied]
    .sort()
    .map((name) => ({ name, state: before.has(name) ? 'already there' : 'applied' }))
  printSteps(terminal, steps, report)
  terminal.say(report.applied.length === 0 ? 'The schema was already up to date.' : 'The schema is now up to date.')
}

function printSteps(terminal: Context['terminal'], steps: readonly { name: string; state: string }[], json: object): void {
  if (terminal.output !== 'table') return terminal.json(json)
  terminal.table(
    [
      { title: 'migration', value: ({ name }) => name },
      { title: 'state', value: ({ state }) => state, paint: ({ state }) => (state === 'missing' ? 'yellow' : 'green') },
    ],
    steps,
  )
}

export async function appliedSteps(url: string): Promise<Set<string>> {
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

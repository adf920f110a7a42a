// Whether the installed schema is the one that this release was written for. A difference is reported with the SQL that repairs it, for a person
// to read and run.

import { readMigrations, readSchema, releasedSchema, type SchemaClient, type SchemaShape } from 'pawl/admin'

type TableShape = SchemaShape['tables'][string]
type ColumnShape = TableShape['columns'][string]
type Definitions = SchemaShape['functions']

export interface Drift {
  /** Such as 'index job_ready' or 'column job.fence'. */
  readonly what: string
  /** null: this release has no such thing. */
  readonly expected: string | null
  /** null: it is not there. */
  readonly actual: string | null
  /** Statements separated by an empty line. Run each by itself: `create index concurrently` does not work inside a transaction. */
  readonly fixSql: string
}

/** The differences, in the order of their repair. Empty when there is nothing to do. */
export async function findDrift(client: SchemaClient, expected: SchemaShape = releasedSchema()): Promise<Drift[]> {
  const found = compareSchemas(expected, await readSchema(client))
  // A newer release has more than this one knows of, and is meant to.
  return (await isNewer(client)) ? found.filter((drift) => drift.expected !== null) : found
}

async function isNewer(client: SchemaClient): Promise<boolean> {
  const rows = async <Row>(text: string) => ((await client.query(text)) as { rows: Row[] }).rows
  const [ledger] = await rows<{ there: boolean }>("select to_regclass('pawl.migration') is not null as there")
  if (!ledger?.there) return false
  const known = new Set(readMigrations().map((migration) => migration.name))
  return (await rows<{ name: string }>('select name from pawl.migration')).some(({ name }) => !known.has(name))
}

export function compareSchemas(expected: SchemaShape, actual: SchemaShape): Drift[] {
  const functions = Object.entries(calledFirst(expected.functions))
  const namesTable = ([, definition]: readonly [string, string]) =>
    tablesNamed(definition).some((name) => name in expected.tables)
  const compare = (some: readonly (readonly [string, string])[]) =>
    compareNamed('function', Object.fromEntries(some), actual.functions, createFunction, changeFunction)
  return [
    ...compareNamed('sequence', expected.sequences, actual.sequences, createSequence, changeSequence),
    ...compare(functions.filter((each) => !namesTable(each))),
    ...referredFirst(expected.tables).flatMap(([name, table]) => compareTables(name, table, actual.tables[name])),
    ...compare(functions.filter(namesTable)),
  ]
}

/** Tables must exist before a function that names them, except in a body that is a string. */
function tablesNamed(definition: string): string[] {
  const parsed = definition.replace(/^ ?AS \$function\$[\s\S]*?\$function\$/m, '')
  return [...parsed.matchAll(/\bpawl\.(\w+)(?![\w(])/g)].map(([, name]) => name!)
}

/** A function comes after those that it calls: a body in SQL's own syntax is parsed when it is created. */
function calledFirst(functions: SchemaShape['functions']): SchemaShape['functions'] {
  const ordered = new Map<string, string>()
  const visited = new Set<string>()
  const add = (signature: string) => {
    if (visited.has(signature)) return
    visited.add(signature)
    const called = new Set([...functions[signature]!.matchAll(/\b(pawl\.\w+)\(/g)].map(([, name]) => name))
    for (const other of Object.keys(functions)) if (called.has(other.slice(0, other.indexOf('(')))) add(other)
    ordered.set(signature, functions[signature]!)
  }
  for (const signature of Object.keys(functions)) add(signature)
  return Object.fromEntries(ordered)
}

/** A table comes after those that its foreign keys name. */
function referredFirst(tables: SchemaShape['tables']): [string, TableShape][] {
  const ordered = new Map<string, TableShape>()
  const add = (name: string) => {
    const table = tables[name]
    if (table === undefined || ordered.has(name)) return
    for (const definition of Object.values(table.constraints)) {
      const referred = /REFERENCES pawl\.(\w+)/.exec(definition)?.[1]
      if (referred !== undefined && referred !== name) add(referred)
    }
    ordered.set(name, table)
  }
  for (const name of Object.keys(tables)) add(name)
  return [...ordered]
}

function compareTables(name: string, expected: TableShape, actual: TableShape | undefined): Drift[] {
  if (actual === undefined) {
    return [
      { what: `table ${name}`, expected: createTable(name, expected), actual: null, fixSql: createWholeTable(name, expected) },
    ]
  }
  const table = `pawl.${quoted(name)}`
  return [
    ...compareOptions(name, expected, actual),
    ...compareColumns(name, expected, actual),
    ...compareParts(`constraint ${name}`, expected.constraints, actual.constraints, {
      create: (part, definition) => addConstraint(table, part, definition),
      drop: (part) => [`alter table ${table} drop constraint ${quoted(part)};`],
    }),
    ...compareParts('index', expected.indexes, actual.indexes, {
      create: (_part, definition) => [createIndex(definition, expected.partitionBy !== null)],
      drop: (part) => [`drop index ${expected.partitionBy === null ? 'concurrently ' : ''}pawl.${quoted(part)};`],
    }),
    ...compareParts(`trigger ${name}`, expected.triggers, actual.triggers, {
      create: (_part, definition) => [`${definition};`],
      drop: (part) => [`drop trigger ${quoted(part)} on ${table};`],
    }),
  ]
}

// ---- sequences and functions

/** Other functions and sequences in our schema do no harm, so only missing and different ones are reported. */
function compareNamed(
  kind: string,
  expected: Definitions,
  actual: Definitions,
  create: (name: string, definition: string) => string[],
  change: (name: string, definition: string, was: string) => string[],
): Drift[] {
  return Object.entries(expected).flatMap(([name, definition]) => {
    const was = actual[name]
    if (was === definition) return []
    const fix = was === undefined ? create(name, definition) : change(name, definition, was)
    return [{ what: `${kind} ${name}`, expected: definition, actual: was ?? null, fixSql: statements(fix) }]
  })
}

function createSequence(name: string, definition: string): string[] {
  return [`create sequence pawl.${quoted(name)} ${definition};`]
}

function changeSequence(name: string, definition: string): string[] {
  return [`alter sequence pawl.${quoted(name)} ${definition};`]
}

/** A function in SQL may name a table that is repaired after it. */
function createFunction(_name: string, definition: string): string[] {
  return ['set check_function_bodies = off;', `${definition};`]
}

/** `create or replace` keeps what depends on the function, but cannot change its face. */
function changeFunction(name: string, definition: string, was: string): string[] {
  const face = (text: string) =>
    text
      .slice(0, text.search(/^ ?(?:AS \$|RETURN |BEGIN ATOMIC)/m))
      .replace(/^ (?:LANGUAGE|VOLATILE|STABLE|IMMUTABLE|PARALLEL|STRICT|SECURITY|SET|COST|ROWS).*$/gm, '')
  const replace = createFunction(name, definition)
  return face(definition) === face(was) ? replace : [`drop function ${name};`, ...replace]
}

// ---- tables

function createTable(name: string, table: TableShape): string {
  const columns = Object.entries(table.columns).map(([column, shape]) => `  ${columnSql(column, shape)}`)
  const constraints = Object.entries(table.constraints).map(
    ([constraint, definition]) => `  constraint ${quoted(constraint)} ${definition}`,
  )
  const partitioned = table.partitionBy === null ? '' : ` partition by ${table.partitionBy}`
  const options = Object.entries(table.options).map(([option, value]) => `${option} = ${value}`)
  const storage = options.length === 0 ? '' : ` with (${options.join(', ')})`
  return `create table pawl.${quoted(name)} (\n${[...columns, ...constraints].join(',\n')}\n)${partitioned}${storage};`
}

function createWholeTable(name: string, table: TableShape): string {
  // A new table has no writers to hold up.
  const indexes = Object.values(table.indexes).map((definition) => `${definition.replace(' ON ONLY ', ' ON ')};`)
  const partitions =
    table.partitionBy === null ? [] : [`select pawl.add_day_partitions('${name}', (pawl.now() at time zone 'UTC')::date, 7);`]
  const rows = ['installation', 'sequencer'].includes(name) ? [`insert into pawl.${name} default values;`] : []
  return statements([
    createTable(name, table),
    ...indexes,
    ...Object.values(table.triggers).map((definition) => `${definition};`),
    ...partitions,
    ...rows,
  ])
}

/** An option may have been tuned; only one that is not set at all is reported. */
function compareOptions(name: string, expected: TableShape, actual: TableShape): Drift[] {
  return Object.entries(expected.options)
    .filter(([option]) => actual.options[option] === undefined)
    .map(([option, value]) => ({
      what: `option ${name}.${option}`,
      expected: value,
      actual: null,
      fixSql: `alter table pawl.${quoted(name)} set (${option} = ${value});`,
    }))
}

function compareColumns(name: string, expected: TableShape, actual: TableShape): Drift[] {
  const table = `pawl.${quoted(name)}`
  const names = new Set([...Object.keys(expected.columns), ...Object.keys(actual.columns)])
  return [...names].flatMap((column) => {
    const [wanted, was] = [expected.columns[column], actual.columns[column]]
    const definitions = {
      expected: wanted === undefined ? null : columnSql(column, wanted),
      actual: was === undefined ? null : columnSql(column, was),
    }
    if (definitions.expected === definitions.actual) return []
    const fix =
      wanted === undefined
        ? [`alter table ${table} drop column ${quoted(column)};`]
        : was === undefined
          ? [`alter table ${table} add column ${columnSql(column, wanted)};`]
          : changeColumn(`alter table ${table} alter column ${quoted(column)}`, quoted(column), wanted, was)
    return [{ what: `column ${name}.${column}`, ...definitions, fixSql: statements(fix) }]
  })
}

function columnSql(name: string, shape: ColumnShape): string {
  const parts = [quoted(name), typeSql(shape)]
  if (shape.identity !== null) parts.push(identitySql(shape.identity))
  if (shape.default !== null) parts.push(`default ${shape.default}`)
  if (shape.isNotNull) parts.push('not null')
  return parts.join(' ')
}

function typeSql(shape: ColumnShape): string {
  return shape.collation === null ? shape.type : `${shape.type} collate ${quoted(shape.collation)}`
}

function identitySql(identity: string): string {
  return `generated ${identity === 'a' ? 'always' : 'by default'} as identity`
}

function changeColumn(alter: string, name: string, wanted: ColumnShape, was: ColumnShape): string[] {
  const fix: string[] = []
  if (typeSql(wanted) !== typeSql(was)) fix.push(`${alter} type ${typeSql(wanted)} using ${name}::${wanted.type};`)
  if (wanted.identity !== was.identity) {
    if (was.identity !== null) fix.push(`${alter} drop identity;`)
    if (wanted.identity !== null) fix.push(`${alter} add ${identitySql(wanted.identity)};`)
  }
  if (wanted.default !== was.default)
    fix.push(wanted.default === null ? `${alter} drop default;` : `${alter} set default ${wanted.default};`)
  if (wanted.isNotNull !== was.isNotNull) fix.push(`${alter} ${wanted.isNotNull ? 'set' : 'drop'} not null;`)
  return fix
}

// ---- parts of tables: an extra one slows every write or refuses some, so it is reported too

interface Mend {
  readonly create: (name: string, definition: string) => string[]
  readonly drop: (name: string) => string[]
}

function compareParts(kind: string, expected: Definitions, actual: Definitions, mend: Mend): Drift[] {
  const names = new Set([...Object.keys(expected), ...Object.keys(actual)])
  return [...names].flatMap((name) => {
    const [wanted, was] = [expected[name], actual[name]]
    if (wanted === was) return []
    const fix = [...(was === undefined ? [] : mend.drop(name)), ...(wanted === undefined ? [] : mend.create(name, wanted))]
    return [
      {
        what: kind.includes(' ') ? `${kind}.${name}` : `${kind} ${name}`,
        expected: wanted ?? null,
        actual: was ?? null,
        fixSql: statements(fix),
      },
    ]
  })
}

/** A check or foreign key is added without a scan, then verified under a lock that lets writers pass. */
function addConstraint(table: string, name: string, definition: string): string[] {
  if (!/^(?:CHECK|FOREIGN KEY)/.test(definition)) return [`alter table ${table} add constraint ${quoted(name)} ${definition};`]
  return [
    `alter table ${table} add constraint ${quoted(name)} ${definition} not valid;`,
    `alter table ${table} validate constraint ${quoted(name)};`,
  ]
}

function createIndex(definition: string, isPartitioned: boolean): string {
  // A partitioned index cannot be built concurrently; its table's partitions are days, most of them quiet.
  return `${isPartitioned ? definition.replace(' ON ONLY ', ' ON ') : definition.replace(/^CREATE (UNIQUE )?INDEX /, 'CREATE $1INDEX CONCURRENTLY ')};`
}

function quoted(name: string): string {
  return /^[a-z_][a-z0-9_]*$/.test(name) && !reserved.has(name) ? name : `"${name.replaceAll('"', '""')}"`
}

/** Words that our tables might be tempted to use as names and that SQL keeps for itself. */
const reserved = new Set([
  'all',
  'array',
  'check',
  'default',
  'desc',
  'end',
  'from',
  'group',
  'limit',
  'offset',
  'order',
  'references',
  'select',
  'table',
  'to',
  'user',
  'when',
  'where',
])

function statements(fix: readonly string[]): string {
  return fix.join('\n\n')
}

// The recorder: triggers in the torture database, and in no other, that write down every change of the tables a scenario names, in the
// transaction of the change. They are generated from the catalogue and enforce nothing.

export interface Recorded {
  /** A table of the schema pawl. */
  readonly table: string
  /** The old and the new value of these columns, as words; a change of none of them is not recorded. */
  readonly columns: string
  /** SQL expressions over the changed row `r`, evaluated at that moment. */
  readonly seen?: Readonly<Record<string, string>>
  /** One row for each statement and each value of the columns, with the number of rows, instead of one for each row. */
  readonly isPerStatement?: boolean
}

/** All values are strings as PostgreSQL writes them, so no fence is rounded. */
export interface Change<Column extends string = string, Seen extends string = string> {
  readonly at: number
  readonly xid: string
  /** The application name of the session, and the process in it. */
  readonly actor: string
  readonly proc: string
  readonly old: Values<Column> | null
  readonly new: Values<Column> | null
  readonly seen: Values<Seen>
}
type Values<Name extends string> = Readonly<Record<Name, string>>

const schemaSql = `
create schema torture;
create table torture.step (at timestamptz not null default clock_timestamp(), ms bigint not null);
comment on table torture.step is 'When the clock of the database was stepped.';
create table torture.mended (what text not null);
comment on table torture.mended is 'Failures whose cause the operator has removed.';
create table torture.change (
  n bigint generated always as identity,
  at timestamptz not null default clock_timestamp(),
  xid text not null default pg_current_xact_id()::text,
  actor text not null default current_setting('application_name'),
  source text not null,
  old jsonb,
  new jsonb,
  seen jsonb
);
create index change_source on torture.change (source, n);`

export type Query = <Row = Record<string, unknown>>(text: string, values?: unknown[]) => Promise<Row[]>

export async function openRecorder(query: Query, recorded: readonly Recorded[]): Promise<void> {
  await query(schemaSql)
  for (const { table, columns, seen = {}, isPerStatement = false } of recorded) {
    const found = await query<{ name: string }>(
      `select a.attname as name from pg_attribute a
       where a.attrelid = $1::regclass and a.attname = any ($2::text[]) and not a.attisdropped`,
      [`pawl.${table}`, columns.split(' ')],
    )
    const names = found.map(({ name }) => name)
    if (names.length !== columns.split(' ').length) throw new Error(`pawl.${table} has only ${names.join(' ')} of ${columns}.`)
    const seenSql = objectOf(Object.entries(seen).map(([name, sql]) => [name, `(${sql})`]))
    await query(isPerStatement ? perStatementSql(table, names, seenSql) : perRowSql(table, names, seenSql))
  }
}

const objectOf = (entries: readonly (readonly [name: string, sql: string])[]): string =>
  `jsonb_build_object(${entries.map(([name, sql]) => `'${name}', to_jsonb(${sql}) #>> '{}'`).join(', ')})`

function perRowSql(table: string, names: readonly string[], seenSql: string): string {
  const values = (row: string) => objectOf(names.map((name) => [name, `${row}.${name}`]))
  return `
create function torture.record_${table}() returns trigger language plpgsql as $$
declare
  r pawl.${table};
  v_old jsonb;
  v_new jsonb;
begin
  if tg_op <> 'INSERT' then r := old; v_old := ${values('r')}; end if;
  if tg_op <> 'DELETE' then r := new; v_new := ${values('r')}; end if;
  if v_old is distinct from v_new then
    insert into torture.change (source, old, new, seen) values ('${table}', v_old, v_new, ${seenSql});
  end if;
  return null;
end
$$;
create trigger torture_record after insert or update or delete on pawl.${table} for each row execute function torture.record_${table}();`
}

function perStatementSql(table: string, names: readonly string[], seenSql: string): string {
  const trigger = (op: string, rows: string) => `
create trigger torture_${op} after ${op} on pawl.${table}
referencing ${rows} table as touched for each statement execute function torture.record_${table}();`
  return `
create function torture.record_${table}() returns trigger language plpgsql as $$
begin
  insert into torture.change (source, old, new, seen)
  select '${table}', case tg_op when 'DELETE' then v.was end, case tg_op when 'INSERT' then v.was end, ${seenSql}
  from (select ${names.join(', ')}, count(*) as rows from touched group by ${names.join(', ')}) r
  cross join lateral (select ${objectOf([...names, 'rows'].map((name) => [name, `r.${name}`]))} as was) v;
  return null;
end
$$;
${trigger('insert', 'new')}${trigger('delete', 'old')}`
}

/** Every change of a table, in order. */
export async function changesOf<Column extends string, Seen extends string = never>(
  rows: Query,
  table: string,
): Promise<Change<Column, Seen>[]> {
  return rows(
    `select (extract(epoch from at) * 1000)::float8 as at, xid, actor, split_part(actor, ' ', 1) as proc, old, new, seen
     from torture.change where source = $1 order by n`,
    [table],
  )
}

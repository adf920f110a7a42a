// Compares the rows of two generations by a hash over the declared columns, by value: 10.50 is 10.5. Their cursors are locked meanwhile, at one position.

import type { Db } from '../db/db.ts'
import type { Defined } from './definition.ts'
import { quoteIdentifier, tableOf } from './tables.ts'
import type { Comparison, TableComparison } from './types.ts'

/** Two hashes of 64 bits, of the kind that takes equal values for equal: the text of a numeric has its scale. */
const hashOf = (columns: string) =>
  `array[jsonb_hash_extended(jsonb_build_array(${columns}), 0), jsonb_hash_extended(jsonb_build_array(${columns}), 1)]`

/** Not a file of its own: its tables and columns are the user's. */
const shape = (names: { live: string; other: string; key: string; columns: string }) => `
with live as materialized (
  select jsonb_build_array(${names.key}) as k, ${hashOf(names.columns)} as h
  from ${names.live} t
),
other as materialized (
  select jsonb_build_array(${names.key}) as k, ${hashOf(names.columns)} as h
  from ${names.other} t
),
differing as materialized (
  select coalesce(l.k, o.k) as k
  from live l
  full join other o on o.k = l.k
  where l.h is distinct from o.h
)
select (select count(*) from live) as rows, (select count(*) from other) as other_rows, (select count(*) from differing) as differing,
  array(select d.k::text from differing d order by d.k limit $1::integer) as sample`

const sampleMax = 20

export async function compareTables(runs: Db, definition: Defined): Promise<Comparison> {
  const tables: TableComparison[] = []
  for (const { name, key, columns } of definition.tables) {
    const list = (names: readonly string[]) => names.map((each) => `t.${quoteIdentifier(each)}`).join(', ')
    const text = shape({
      live: tableOf(name, definition.generation, true),
      other: tableOf(name, definition.generation, false),
      key: list(key),
      columns: list(columns),
    })
    const [row] = await runs.run<{ rows: string; other_rows: string; differing: string; sample: string[] }>(
      { name: 'compare', preparedName: '', text, parameters: ['sample'], path: 'own' },
      { sample: sampleMax },
    )
    tables.push({
      table: name,
      rows: Number(row!.rows),
      otherRows: Number(row!.other_rows),
      differing: Number(row!.differing),
      sample: row!.sample,
    })
  }
  return { isEqual: tables.every(({ differing }) => differing === 0), tables }
}

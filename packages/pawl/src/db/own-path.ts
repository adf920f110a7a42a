// Our SQL names its tables with their schema, and still its operators, functions and types are looked up in the search path of the session:
// a role that may create in a schema of that path could put its own code there (CVE-2018-1058). Functions of ours fix their path by
// themselves and our connections by their settings; this is for plain statements of ours in somebody else's session.

import { checked, type Tx } from './adapters.ts'
import { textsLiteral } from './statement.ts'

/** For a session of ours, where there is one. */
export const ownPathSetting = 'search_path=pg_catalog,pg_temp'

/** For a transaction of ours. */
export const ownPathSql = 'set local search_path = pg_catalog, pg_temp'

/** Around one statement of ours in a transaction whose other statements are a handler's. */
export const ownPathTaken = `select pg_catalog.set_config('pawl.search_path', pg_catalog.current_setting('search_path'), true),
  pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)`
export const ownPathReturned = `select pg_catalog.set_config('search_path', pg_catalog.current_setting('pawl.search_path'), true)`

const runSql = 'select r.answer::text as answer from pawl.run($1::text, $2::text::text[]) as r(answer)'

/**
 * A caller's transaction, for our own statements: each runs inside a function that fixes the path, so the caller's own is never another, not
 * even between two statements. Parameters travel as text and rows come back as JSON, so statements answer with text, integers and booleans.
 */
export function inOwnPath(tx: Tx): Tx {
  return {
    [checked]: true,
    async query<Row>(text: string, values: readonly unknown[] = []) {
      const numbered = text.replace(/\$(\d+)/g, (_match, index: string) => `($1)[${index}]`)
      const given = values.map((value) => (value === null || value === undefined ? null : String(value)))
      const { rows } = await tx.query<{ answer: string }>(runSql, [numbered, textsLiteral(given)])
      return { rows: rows.map(({ answer }) => JSON.parse(answer) as Row) }
    },
  }
}

// The one way to run a statement of ours. Engine connections, pools, transactions of ours and transactions of callers all are a Db.

import { type AnyTx, checked, type Tx, toTx } from './adapters.ts'
import { bind, type Statement, textsLiteral, type Values } from './statement.ts'

export interface Db {
  /** Runs one statement and returns its rows. Outside a transaction the statement is a transaction by itself. */
  run<Row>(statement: Statement, values?: Values): Promise<Row[]>
}

/** A transaction, ours or a caller's: it runs statements of ours, and can be passed on as `{ tx }`. */
export type TxDb = Db & Tx

const runSql = 'select r.answer::text as answer from pawl.run($1::text, $2::text::text[]) as r(answer)'

/**
 * A caller's transaction. A statement runs inside a function that fixes the search path, so the caller's own path never changes, not even between
 * two statements. Parameters travel as text and rows come back as JSON, so statements return only text, integers and booleans.
 */
export function dbOf(given: AnyTx, use: 'read' | 'write' = 'write'): TxDb {
  const tx = toTx(given, use)
  return {
    [checked]: true,
    query: (text, values) => tx.query(text, values),
    async run<Row>(statement: Statement, values: Values = {}) {
      const bound = bind(statement, values)
      if (statement.path === 'any') return (await tx.query<Row>(statement.text, bound, `${statement.preparedName}_tx`)).rows
      const numbered = statement.text.replace(/\$(\d+)/g, (_match, index: string) => `($1)[${index}]`)
      const texts = bound.map((value) => (value === null ? null : String(value)))
      const { rows } = await tx.query<{ answer: string }>(runSql, [numbered, textsLiteral(texts)])
      return rows.map(({ answer }) => JSON.parse(answer) as Row)
    },
  }
}

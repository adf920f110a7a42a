// A statement from a string, for tests: `db.run(...sql('select $1::integer as n', 1))`.

import type { Parameter, Statement, Values } from '../../src/db/statement.ts'

export function sql(text: string, ...values: readonly Parameter[]): [statement: Statement, values: Values] {
  const named = values.map((value, index) => [String(index + 1), value] as const)
  const parameters = named.map(([name]) => name)
  return [{ name: 'test', preparedName: '', text, parameters, path: 'own' }, Object.fromEntries(named)]
}

// A handler that finds no row where one must be has met an event that it cannot apply: saying so parks the key, saying nothing loses it.

import { PawlError } from '../errors.ts'

/** Throws unless the statement met so many rows. Inside a projection's handler the event's key is parked with this as its reason. */
export function expectRows<Result extends { readonly rows: readonly unknown[]; readonly rowCount?: number | null }>(
  result: Result,
  count: number,
): Result {
  const met = result.rowCount ?? result.rows.length
  if (met === count) return result
  throw new PawlError(
    'PAWL_ROWS_EXPECTED',
    `A statement met ${met} row(s) where ${count} were expected. What the event speaks of is not there, or not as it says.`,
    { details: { met, expected: count } },
  )
}

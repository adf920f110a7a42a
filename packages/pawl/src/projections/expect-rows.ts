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
    `Expected ${count} row(s), got ${met}: a row that the event refers to does not exist or has changed.`,
    { details: { met, expected: count } },
  )
}

// Pages of rows, and rows as users see them.

export interface PageOptions {
  /** `next` of the page before. */
  readonly after?: string
  /** The size of a page, 1 to 1000. Default 50. */
  readonly limit?: number
}

export interface Page<Item> {
  readonly items: readonly Item[]
  /** Give it as `after` for the next page; null: this was the last. */
  readonly next: string | null
}

/** Of one row more than the page has: whether another follows. */
export function pageOf<Item>(rows: readonly Item[], limit: number, keyOf: (item: Item) => string): Page<Item> {
  const items = rows.slice(0, limit)
  return { items, next: rows.length > limit ? keyOf(items.at(-1)!) : null }
}

export function camelCase<Row = Record<string, unknown>>(row: Readonly<Record<string, unknown>>): Row {
  return Object.fromEntries(
    Object.entries(row).map(([name, value]) => [name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase()), value]),
  ) as Row
}

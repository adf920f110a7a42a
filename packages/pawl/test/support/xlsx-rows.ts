// Reads a workbook without a database: the cells of each row under the columns of its header.

import { type XlsxOptions, xlsx } from 'pawl/records/xlsx'

export interface ReadWorkbook {
  readonly rows: readonly (readonly unknown[])[]
  readonly types: readonly (string | undefined)[]
  readonly ignored: readonly string[]
}

export interface ReadOptions {
  readonly types?: readonly string[]
  readonly columns?: readonly string[]
  readonly options?: XlsxOptions
  readonly rowCharsMax?: number
}

export async function readRows(
  book: Uint8Array,
  { types = ['load'], columns = ['id', 'note'], options = {}, rowCharsMax = 1_000_000 }: ReadOptions = {},
): Promise<ReadWorkbook> {
  const ignored: string[] = []
  async function* chunks() {
    for (let at = 0; at < book.length; at += 65_536) yield Buffer.from(book.subarray(at, at + 65_536))
  }
  const found = xlsx(options).read({
    chunks: chunks(),
    rowCharsMax,
    types: new Set(types),
    ignore: (sheet) => ignored.push(sheet),
    checkHeader: () => undefined,
  })
  const rows: unknown[][] = []
  const names: (string | undefined)[] = []
  for await (const some of found)
    for (const row of some) {
      rows.push([...row.values(columns.map((name) => ({ name })))])
      names.push(row.type)
    }
  return { rows, types: names, ignored }
}

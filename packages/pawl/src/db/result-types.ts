// How our own statements read what the server answers. pg has one table of parsers for the whole process, and an application may change it:
// with `types.setTypeParser(20, Number)` every id and fence of ours would be rounded. So our connections bring their own.

type Parser = (text: string) => unknown

const asText: Parser = (text) => text
const json: Parser = (text) => JSON.parse(text)

/** By the oid of the type. What is not here, bigint and numeric among it, stays the text that it is. */
const parsers: ReadonlyMap<number, Parser> = new Map<number, Parser>([
  [16, (text) => text === 't'], // boolean
  [21, Number], // smallint
  [23, Number], // integer
  [26, Number], // oid
  [114, json],
  [700, Number], // real
  [701, Number], // double precision
  [1007, (text) => itemsOf(text).map((item) => (item === null ? null : Number(item)))], // integer[]
  [1009, itemsOf], // text[]
  [1184, timestamptz],
  [3802, json], // jsonb
])

/** For `types` of a client or of one query. */
export const ownTypes = {
  getTypeParser: (oid: number): never => (parsers.get(oid) ?? asText) as never,
}

/** 2030-01-02 03:04:05.678901+05:30; the minutes of the zone are there only if they are not 0. */
function timestamptz(text: string): Date {
  return new Date(text.replace(' ', 'T').replace(/[+-]\d\d$/, '$&:00'))
}

/** The items of an array of one dimension: {a,"b, c",NULL}. */
function itemsOf(text: string): (string | null)[] {
  return [...text.slice(1, -1).matchAll(/"((?:\\.|[^"\\])*)"|([^,]+)/g)].map(([, quoted, plain]) => {
    if (quoted !== undefined) return quoted.replace(/\\(.)/g, '$1')
    return plain === 'NULL' ? null : plain!
  })
}

// What our own statements bring to a session: a search path, and parsers for the types of their results.

// ---- search path

// Our SQL names its tables with their schema, and still its operators, functions and types are looked up in the search path of the session:
// a role that may create in a schema of that path could put its own code there (CVE-2018-1058). Functions of ours fix their path by
// themselves, our connections by their settings, and a caller's transaction by pawl.run (db.ts).

/** For a session of ours, where there is one. */
export const ownPathSetting = 'search_path=pg_catalog,pg_temp'

/** For a transaction of ours. */
export const ownPathSql = 'set local search_path = pg_catalog, pg_temp'

/** Around one statement of ours in a transaction whose other statements are a handler's. */
export const ownPathTaken = `select pg_catalog.set_config('pawl.search_path', pg_catalog.current_setting('search_path'), true),
  pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)`
export const ownPathReturned = `select pg_catalog.set_config('search_path', pg_catalog.current_setting('pawl.search_path'), true)`

// ---- result types

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

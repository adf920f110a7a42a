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

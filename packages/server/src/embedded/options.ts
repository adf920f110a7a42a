import { EmbeddedError } from './errors.ts'
import { defaultPort } from './port.ts'
import type { EmbeddedOptions } from './types.ts'

export type CheckedOptions = Required<EmbeddedOptions>

// The superuser is called pawl, and so is Pawl's schema: by "$user" the tables of an application would land in there.
const defaultSettings = { max_connections: '200', wal_level: 'logical', search_path: 'public' }

/** These decide who can connect and where the files are; the launcher relies on its own values. */
const reserved = new Set([
  'port',
  'listen_addresses',
  'unix_socket_directories',
  'data_directory',
  'config_file',
  'hba_file',
  'ident_file',
])

export function checkOptions(given: EmbeddedOptions): CheckedOptions {
  const { dir, port = defaultPort, database = 'pawl', settings = {}, onNotice = () => {} } = given
  if (dir === '') throw bad('dir is empty; name the directory that is to hold the database')
  if (!Number.isInteger(port) || port < 0 || port > 65_535)
    throw bad(`port is ${port}; use a number up to 65535, or 0 for any free port`)
  if (database === '' || Buffer.byteLength(database) > 63)
    throw bad(`database is "${database}"; PostgreSQL allows names of 1 to 63 bytes`)
  for (const name of Object.keys(settings)) {
    if (!/^[a-z_][a-z0-9_.]*$/i.test(name)) throw bad(`"${name}" is not the name of a PostgreSQL setting`)
    if (reserved.has(name.toLowerCase()))
      throw bad(`the setting ${name} is the launcher's own; leave it out (the port has an option of its own)`)
  }
  return { dir, port, database, settings: { ...defaultSettings, ...settings }, onNotice }
}

function bad(message: string): EmbeddedError {
  return new EmbeddedError('bad_option', `Embedded PostgreSQL: ${message}.`)
}

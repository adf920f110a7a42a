import { EmbeddedError } from './errors.ts'
import { defaultPort } from './server/port.ts'
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
  if (dir === '') throw bad('dir must not be empty; name the directory for the database')
  if (!Number.isInteger(port) || port < 0 || port > 65_535)
    throw bad(`port must be an integer from 0 to 65535, got ${port}; 0 is any free port`)
  if (database === '' || Buffer.byteLength(database) > 63)
    throw bad(`database must be a name of 1 to 63 bytes, got "${database}"`)
  for (const name of Object.keys(settings)) {
    if (!/^[a-z_][a-z0-9_.]*$/i.test(name)) throw bad(`"${name}" is not a PostgreSQL setting`)
    if (reserved.has(name.toLowerCase()))
      throw bad(`the setting ${name} is reserved for the launcher; leave it out (for the port, use the option port)`)
  }
  return { dir, port, database, settings: { ...defaultSettings, ...settings }, onNotice }
}

function bad(message: string): EmbeddedError {
  return new EmbeddedError('bad_option', `Embedded PostgreSQL: ${message}.`)
}

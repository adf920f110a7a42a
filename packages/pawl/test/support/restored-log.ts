// What tests of a log that was moved share: events with numbers, appended to and read from a server by its URL.

import { onTestFinished } from 'vitest'
import type { DatabaseOptions } from '../../src/db/driver.ts'
import { LogReader, type ReadEvent } from './log-readers.ts'
import { query } from './standby.ts'

export const optionsOf = (url: string): DatabaseOptions => ({
  url,
  pooler: 'none',
  connectTimeoutMs: 10_000,
  queryTimeoutMs: 30_000,
  applicationName: 'pawl test',
})

export const eventOf = (n: number): ReadEvent => ({ key: `k${n % 5}`, version: n, n })
export const append = (url: string, n: number) =>
  query(url, `select pawl.append('Counted', 'a', 'k${n % 5}', '${JSON.stringify(eventOf(n))}')`)

/** Each in a transaction of its own. */
export const appendMany = (url: string, from: number, to: number) =>
  query(
    url,
    `do $$ begin
      for n in ${from}..${to} loop
        perform pawl.append('Counted', 'a', 'k' || n % 5, jsonb_build_object('key', 'k' || n % 5, 'version', n, 'n', n));
        commit;
      end loop;
    end $$`,
  )

/** Closed with the test. */
export function readerOf(url: string, pageMax?: number): LogReader {
  const reader = new LogReader(optionsOf(url), pageMax)
  onTestFinished(() => reader.close())
  return reader
}

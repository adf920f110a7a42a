// What every part of records works with: the database, the sets, and the jobs that carry its work.

import type { Logger } from '../config.ts'
import type { Pool } from '../db/driver.ts'
import { PawlError, shown } from '../errors.ts'
import type { Jobs } from '../jobs/index.ts'
import type { Ends } from './ends.ts'
import type { DefinedSet } from './sets.ts'
import type { Sweep } from './sweep.ts'
import type { RecordSet } from './types.ts'

export interface RecordsCore {
  readonly pool: Pool
  readonly sets: Map<string, DefinedSet>
  /** Sets whose description this process has stored. */
  readonly kept: Set<string>
  readonly jobs: (tenant: string) => Jobs
  /** Of this process, whoever waits in it. */
  readonly ends: Ends
  /** Of this process, for all tenants. */
  readonly sweep: Sweep
  readonly logger: Pick<Logger, 'error'>
}

export interface ReadPlace {
  readonly tenant: string
  readonly set: DefinedSet
  /** The canonical text of the scope. */
  readonly scope: string
}

/** For a statement over all rows of a submission, of which there may be millions: a quarter of an hour. */
export const wholeMs = 15 * 60_000

/**
 * For a transaction whose writes no reader sees before a later one commits, which does wait for the disk: a crash of the server loses the end of its
 * log, so it never loses this and keeps that. The work that goes on after a crash must notice what is lost.
 */
export const inert = { settings: 'set local synchronous_commit = off' }

export function setName(set: RecordSet | string): string {
  const name: unknown = typeof set === 'string' ? set : (set as RecordSet | null | undefined)?.name
  if (typeof name === 'string') return name
  throw new PawlError('PAWL_CONFIG', `A record set must be the value of records.define or a name, got ${shown(set)}.`)
}

export function setOf(core: RecordsCore, set: RecordSet | string): DefinedSet {
  const name = setName(set)
  const found = core.sets.get(name)
  if (found !== undefined) return found
  throw new PawlError('PAWL_NOT_FOUND', `This process defines no record set '${name}'. Call records.define first.`, {
    details: { set: name },
  })
}

/** Ids are bigints; a text that is none names nothing. */
export function idText(what: string, id: string): string {
  if (/^[1-9]\d{0,17}$/.test(id)) return id
  throw new PawlError('PAWL_NOT_FOUND', `There is no ${what} '${String(id).slice(0, 50)}'.`, {
    details: { id: String(id).slice(0, 50) },
  })
}

/** PostgreSQL has no NUL in its texts, so no record has one in its type or key. */
export function isNameable(type: string, key: string): boolean {
  return !type.includes('\u0000') && !key.includes('\u0000')
}

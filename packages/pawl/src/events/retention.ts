// Retention: a day of events is removed when it is old enough, each of its events has a position, every cursor is past it and no parked key
// needs one of them. Oldest first, up to the first that is held, so that the log never has a gap in the middle.

import type { Db } from '../db/db.ts'
import type { Connection } from '../db/driver.ts'
import { type Statement, statement } from '../db/statement.ts'
import { resolveAlert } from '../kernel/alerts.ts'
import { detachPartition, extendPartitions, isLater } from '../kernel/partitions.ts'
import { probe } from '../kernel/probe.ts'

const retentionStatement = statement(import.meta.url, 'retention')
const noteRemovedStatement = statement(import.meta.url, 'note-removed')
const dropDetachedStatement = statement(import.meta.url, 'drop-detached')
const leftoversStatement = statement(import.meta.url, 'leftovers')
const emptyFirstStatement = statement(import.meta.url, 'empty-first')
const heldStatement = statement(import.meta.url, 'retention-held')
const trimPagesStatement = statement(import.meta.url, 'trim-pages')
const pruneInboxStatement = statement(import.meta.url, 'prune-inbox')

const chunkRows = 10_000
const unsequenced = 'events in it that have no position yet'

export interface OldPartition {
  readonly name: string
  readonly is_first: boolean
  readonly is_detaching: boolean
  readonly until: string
  readonly bytes: string
  readonly writer: string | null
  readonly is_unsequenced: boolean
  readonly cursor: string | null
  readonly parked: string | null
}

export interface Retained {
  /** The partitions that were removed. */
  readonly removed: string[]
  /** The oldest partition that is old enough and was not removed, and why. */
  readonly held: { readonly partition: string; readonly by: string } | undefined
}

export function oldPartitions(db: Db, keepDays: number): Promise<OldPartition[]> {
  return db.run<OldPartition>(retentionStatement, { keep_days: keepDays })
}

/** What holds this partition; undefined: nothing does. */
export function holderOf(partition: OldPartition): string | undefined {
  if (partition.is_detaching) return undefined
  if (partition.writer !== null) return `an open transaction that wrote to it (${partition.writer})`
  if (partition.is_unsequenced) return unsequenced
  if (partition.cursor !== null) return `cursor ${partition.cursor}`
  return partition.parked === null ? undefined : `parked key ${partition.parked}`
}

/** Needs a connection whose plans may scan whole tables. */
export async function retain(connection: Connection, options: { readonly keepDays: number }): Promise<Retained> {
  const retained = await removeDays(connection, options.keepDays)
  const { removed, held } = retained
  if (held === undefined) await connection.run(resolveAlert, { code: 'event.retention', subject: 'event' })
  else await connection.run(heldStatement, { held: heldText(held) })
  // The open-ended first partition gets its new bound at once, so that an event with an old created_at has a partition.
  if (removed.length > 0) await extendPartitions(connection)
  while ((await removedBy(connection, trimPagesStatement)) === chunkRows);
  while ((await removedBy(connection, pruneInboxStatement)) === chunkRows);
  return retained
}

async function removeDays(connection: Connection, keepDays: number): Promise<Retained> {
  const removed: string[] = []
  // Partitions that an earlier run detached and did not drop.
  for (const { name } of await connection.run<{ name: string }>(leftoversStatement)) {
    const by = await dropDetached(connection, name)
    if (by !== undefined) return { removed, held: { partition: name, by } }
    removed.push(name)
  }
  for (const partition of await oldPartitions(connection, keepDays)) {
    const by = holderOf(partition) ?? (await remove(connection, partition))
    if (by !== undefined) return { removed, held: { partition: partition.name, by } }
    removed.push(partition.name)
  }
  return { removed, held: undefined }
}

/** Returns what holds it after all; undefined: it is removed. */
async function remove(connection: Connection, partition: OldPartition): Promise<string | undefined> {
  const { name, is_detaching: isDetaching, until } = partition
  // For one that is being detached the run that began it has noted this.
  if (!isDetaching) await connection.run(noteRemovedStatement, { until })
  if (probe.on) await probe.hit('events.retain.before', partition)
  if (partition.is_first) {
    await connection.run(emptyFirstStatement, { until })
    return undefined
  }
  if (!(await detachPartition(connection, { parent: 'event', name, isAttached: true, isDetaching })))
    return 'a transaction that uses pawl.event'
  if (probe.on) await probe.hit('events.retain.detached', partition)
  return dropDetached(connection, name)
}

async function dropDetached(connection: Connection, name: string): Promise<string | undefined> {
  try {
    const [row] = await connection.run<{ is_all: boolean }>(dropDetachedStatement, { name })
    return row!.is_all ? undefined : unsequenced
  } catch (error) {
    if (isLater(error)) return 'a transaction that uses it'
    throw error
  }
}

async function removedBy(connection: Connection, chunk: Statement): Promise<number> {
  const [row] = await connection.run<{ removed: number }>(chunk, { limit: chunkRows })
  return row!.removed
}

function heldText({ partition, by }: { readonly partition: string; readonly by: string }): string {
  return `Retention cannot remove ${partition}: it is held back by ${by}. pawl.events.whoHoldsBack() lists the statement that ends this.`
}

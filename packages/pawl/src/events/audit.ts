// The proof that the log lost nothing: every position from the first kept one to the head has its event, and every event that became visible
// before the last tick has one position.

import type { Config } from '../config.ts'
import { statement } from '../db/statement.ts'
import { callOnLongConnection } from './long-connection.ts'

const auditStatement = statement(import.meta.url, 'audit-pages')

export interface LogAudit {
  readonly isSound: boolean
  readonly head: number
  /** The first position that is kept. */
  readonly first: number
  readonly positions: number
  /** The number of gaps and overlaps between pages. */
  readonly breaks: number
  readonly positionsWithoutEvent: number
  readonly firstWithoutEvent: number | undefined
  readonly eventsWithoutPosition: number
  readonly eventsWithTwoPositions: number
}

interface Row {
  readonly head: string
  readonly first_position: string
  readonly positions: string
  readonly breaks: string
  readonly positions_without_event: string
  readonly first_without_event: string | null
  readonly events_without_position: string
  readonly repeated: string
}

/** Reads every kept event once: about two seconds per million. */
export async function auditLog(config: Config): Promise<LogAudit> {
  const [row] = await callOnLongConnection(config, 'audit', (connection) => connection.run<Row>(auditStatement))
  const faults = {
    breaks: Number(row!.breaks),
    positionsWithoutEvent: Number(row!.positions_without_event),
    eventsWithoutPosition: Number(row!.events_without_position),
    eventsWithTwoPositions: Number(row!.repeated),
  }
  return {
    isSound: Object.values(faults).every((count) => count === 0),
    head: Number(row!.head),
    first: Number(row!.first_position),
    positions: Number(row!.positions),
    firstWithoutEvent: row!.first_without_event === null ? undefined : Number(row!.first_without_event),
    ...faults,
  }
}

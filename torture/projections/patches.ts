// Planted bugs that no rewritten statement could be: a call that is made differently.

import { Projections } from 'pawl'
import pg from 'pg'
import { bind } from '../../packages/pawl/src/db/statement.ts'
import { cursorStatements, HeldCursor } from '../../packages/pawl/src/projections/cursor.ts'
import { HandlerTx } from '../../packages/pawl/src/projections/projection-tx.ts'
import { SinkStore } from '../../packages/pawl/src/projections/sink-store.ts'
import { childOptions } from '../child.ts'

/** The move commits by itself, before what the handler writes. */
export function moveFirst(): void {
  const run = HandlerTx.prototype.run
  HandlerTx.prototype.run = async function (this: HandlerTx, statement, values) {
    if (statement.file !== 'move') return run.call(this, statement, values) as never
    const client = new pg.Client({ connectionString: childOptions().url, application_name: `${process.pid} canary` })
    await client.connect()
    try {
      return (await client.query(statement.text, bind(statement, values) as unknown[])).rows as never
    } finally {
      await client.end()
    }
  }
}

/** It does not hear that its lease is over, and takes the cursor's row for its own whoever has it. */
export function believeToHold(): void {
  HeldCursor.prototype.lose = () => undefined
  HeldCursor.prototype.reload = async function (this: HeldCursor, connection) {
    const [row] = await connection.run<Record<'position' | 'event_id', string> & { log_generation: number }>(
      cursorStatements.read,
      this.key,
    )
    const isMoved = Number(row!.position) !== this.place.position
    this.place = { position: Number(row!.position), eventId: row!.event_id, logGeneration: row!.log_generation }
    return { state: 'running', limitAt: undefined, isHeld: false, isMoved }
  }
}

export function answerAtOnce(): void {
  Projections.prototype.seen = async () => undefined
}

/** Later events of a parked key go on without it. */
export function ignoreParked(): void {
  SinkStore.prototype.isParked = () => false
}

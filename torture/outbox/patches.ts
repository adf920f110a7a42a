// Planted bugs that no rewritten statement could be: a call that is made differently.

import type { LogEvent } from 'pawl'
import pg from 'pg'
import { Acks } from '../../packages/pawl/src/projections/acks.ts'
import { HandlerTx } from '../../packages/pawl/src/projections/projection-tx.ts'
import { SinkKeys } from '../../packages/pawl/src/projections/sink-keys.ts'
import { SinkStore } from '../../packages/pawl/src/projections/sink-store.ts'
import { childOptions } from '../child.ts'

export function acknowledgeAtOnce(): void {
  const add = Acks.prototype.add
  Acks.prototype.add = function (this: Acks, events, lookedTo) {
    const fresh = add.call(this, events, lookedTo)
    for (const { position } of fresh) this.finish(position)
    return fresh
  }
}

export function forgetKeys(): void {
  const add = SinkKeys.prototype.add
  SinkKeys.prototype.add = function (this: SinkKeys, event: LogEvent, isParked) {
    add.call(this, { ...event, key: `${event.key}/${event.position}` }, isParked)
  }
}

export function forgetStores(): void {
  SinkStore.prototype.isStoring = () => false
}

export function sendOutside(): void {
  const pool = new pg.Pool({ connectionString: childOptions().url, application_name: 'canary' })
  HandlerTx.prototype.send = (text, values?: readonly unknown[]) => {
    void pool.query(text, [...(values ?? [])])
  }
}

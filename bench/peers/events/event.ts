// The events of every benchmark: about 70 bytes of data, one of 1,000 keys.

import type { NewEvent } from 'pawl'
import { payloadOf } from '../../harness/system/protocol.ts'

export const keys = 1_000

export function eventOf(n: number): NewEvent {
  return { type: 'Sent', aggregateType: 'mail', key: keyOf(n), data: payloadOf(n) }
}

export function keyOf(n: number): string {
  return `mail-${Math.abs(n) % keys}`
}

export const countTable = 'create table if not exists counted (key text primary key, events integer not null)'
export const upsertCount =
  'insert into counted (key, events) values ($1, 1) on conflict (key) do update set events = counted.events + 1'

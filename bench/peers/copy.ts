// The limit for bulk enqueue: COPY of the same rows into Pawl's own table.

import { type Peer, payloadOf } from '../harness/system/protocol.ts'
import { copyRows } from './copy-rows.ts'

const table = 'pawl.job (tenant, queue, kind, state, payload, payload_version, due, run_at, created_at, priority)'

export function open(): Peer {
  const at = new Date().toISOString()
  return copyRows(table, (n) => `\tdefault\tbench\tready\t${JSON.stringify(payloadOf(n))}\t1\t${at}\t${at}\t${at}\t0\n`)
}

// The limit for bulk append: COPY of the same events into Pawl's own table.

import { type Peer, payloadOf } from '../../harness/system/protocol.ts'
import { copyRows } from '../copy-rows.ts'
import { keyOf } from './event.ts'

export function open(): Peer {
  return copyRows(
    'pawl.event (aggregatetype, aggregateid, type, payload)',
    (n) => `mail\t${keyOf(n)}\tSent\t${JSON.stringify(payloadOf(n))}\n`,
  )
}

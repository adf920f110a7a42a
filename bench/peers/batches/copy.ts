// The limit for a start: COPY of the same items into Pawl's own table, with its indexes.

import { type Peer, payloadOf } from '../../harness/system/protocol.ts'
import { copyRows } from '../copy-rows.ts'

export function open(): Peer {
  return copyRows(
    'pawl.batch_item (tenant, batch_id, n, key, data, units)',
    (n) => `\t1\t${n + 1}\tfile-${n}\t${JSON.stringify(payloadOf(n))}\t1\n`,
  )
}

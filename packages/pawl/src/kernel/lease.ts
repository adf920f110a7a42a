// Leases: the end of a lease is one column of one row, the holder's. A job names its holder and its fence, so renewing one row renews
// everything that the holder has.

import { statement } from '../db/statement.ts'

/** The first key of the liveness advisory locks: "pawl". The second is the incarnation's id. */
export const livenessLockClass = 0x7061776c

export const leaseStatements = {
  open: statement(import.meta.url, 'open-worker'),
  beat: statement(import.meta.url, 'beat'),
  close: statement(import.meta.url, 'close-worker'),
  closeDead: statement(import.meta.url, 'close-dead-workers'),
  refuse: statement(import.meta.url, 'refuse'),
} as const

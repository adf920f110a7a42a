// Writes of our own that are not idempotent: sent again only while it is certain that nothing was stored.

import { classify, markOwn, sqlState, unavailable } from '../db/classify.ts'
import { isPawlError, PawlError } from '../errors.ts'
import { retryingCall } from './retry.ts'

/** What failed before it was sent, or was refused as a whole, may be sent again; a lost answer may not: it would be there twice. */
export async function retryingDefinite<T>(work: () => Promise<T>): Promise<T> {
  return retryingCall(async () => {
    try {
      return await work()
    } catch (error) {
      if (classify(error) === 'connection' && !isBeforeSending(error)) throw answerLost(error)
      throw error
    }
  })
}

/** For what `retryingDefinite` gave up on. */
export function answerLost(error: unknown): unknown {
  if (isBeforeSending(error)) return unavailable(error)
  return markOwn(
    new PawlError(
      'PAWL_COMMIT_UNKNOWN',
      'The connection broke before the server answered, so it is not known whether the write was stored. Check before you repeat it, or write in your own transaction with a once key.',
      { cause: error },
    ),
  )
}

/** For the statements of a transaction of ours: a connection that breaks before the commit is sent has stored nothing. */
export async function beforeCommit<T>(work: Promise<T>): Promise<T> {
  return work.catch((error: unknown) => {
    if (classify(error) !== 'connection' || isPawlError(error, 'PAWL_UNAVAILABLE')) throw error
    throw markOwn(
      new PawlError(
        'PAWL_ROLLED_BACK',
        'The connection broke before the commit was sent, so nothing was stored. Call it again.',
        {
          cause: error,
        },
      ),
    )
  })
}

function isBeforeSending(error: unknown): boolean {
  // The two codes: of a pooler that was given a statement and got no connection to the server.
  return isPawlError(error, 'PAWL_UNAVAILABLE') || ['53300', '57P03'].includes(sqlState(error) ?? '')
}

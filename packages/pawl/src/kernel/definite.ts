// Writes of our own that are not idempotent: sent again only while it is certain that nothing was stored.

import { classify } from '../db/classify.ts'
import { unavailable } from '../db/driver.ts'
import { PawlError } from '../errors.ts'
import { retrying } from './retry.ts'

/** What failed before it was sent, or was refused as a whole, may be sent again; a lost answer may not: it would be there twice. */
export async function retryingDefinite<T>(work: () => Promise<T>): Promise<T> {
  return retrying(async () => {
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
  return new PawlError(
    'PAWL_COMMIT_UNKNOWN',
    'The connection broke before the answer came, so whether it was stored is not known. Look before you repeat it, or do it in a transaction of your own with a once key.',
    { cause: error },
  )
}

function isBeforeSending(error: unknown): boolean {
  const text = `${(error as { code?: string }).code ?? ''} ${error instanceof Error ? error.message : ''}`
  return /The password function failed|ECONNREFUSED|ENOTFOUND|EAI_AGAIN|53300|57P03|timeout exceeded when trying to connect|due to connection timeout/.test(
    text,
  )
}

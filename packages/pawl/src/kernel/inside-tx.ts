// The tx handler that a call is made in. A call without the handler's transaction would wait for the very pool that the handler occupies.

import { AsyncLocalStorage } from 'node:async_hooks'

export interface TxHandler {
  readonly kind: string
  readonly isEnded: boolean
}

export const insideTx = new AsyncLocalStorage<TxHandler>()

/** Undefined, too, for a timer that a handler left and that fires after the handler's end. */
export function txHandler(): TxHandler | undefined {
  const inside = insideTx.getStore()
  return inside?.isEnded ? undefined : inside
}

/** Runs a handler that is no job's, such as a projection's. */
export async function runInsideTx<Answer>(kind: string, handler: () => Promise<Answer>): Promise<Answer> {
  const inside = { kind, isEnded: false }
  try {
    return await insideTx.run(inside, handler)
  } finally {
    inside.isEnded = true
  }
}

// A handler that ran too long has left a transaction behind: without its connection the server rolls it back, but not before it has ended
// the statement that it is at, and until then it keeps its rows. What is to be written to those waits here, on a connection of its own.

import { setTimeout as sleep } from 'node:timers/promises'
import { isConflict } from '../db/classify.ts'
import type { Transaction } from '../db/transaction.ts'
import { engineBackoffMs } from '../kernel/retry.ts'
import { openTx } from './projection-tx.ts'
import type { World } from './world.ts'

export async function whenUnlocked<T>(world: World, stop: AbortSignal, work: (tx: Transaction) => Promise<T>): Promise<T> {
  for (let tried = 1; ; tried++) {
    try {
      return await inOneTx(world, work)
    } catch (error) {
      if (!isConflict(error) || stop.aborted) throw error
      world.onTrouble(error)
      await sleep(engineBackoffMs(error, tried), undefined, { signal: stop }).catch(() => undefined)
    }
  }
}

async function inOneTx<T>(world: World, work: (tx: Transaction) => Promise<T>): Promise<T> {
  return (await openTx(world)).perform(async (tx) => {
    // Less than the connection waits for an answer: a write that was given up must not happen later.
    tx.send(`set local lock_timeout = ${Math.floor(world.config.database.queryTimeoutMs / 2)}`)
    return work(tx)
  })
}

// Waiting in processes that tests start, which have no test around them.

import { setTimeout as sleep } from 'node:timers/promises'

/** Looks often until there is an answer. */
export async function until<T>(look: () => Promise<T | undefined>): Promise<T> {
  for (;;) {
    const seen = await look()
    if (seen !== undefined) return seen
    await sleep(5)
  }
}

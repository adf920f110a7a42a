// The sweep: every process that defines a record set ends submissions whose job is dead or gone, removes those whose time is over, and clears
// the staged rows of those that are submitted. It is no job, because jobs can be cancelled.

import { setTimeout as sleep } from 'node:timers/promises'
import { statement } from '../db/statement.ts'
import { Failures } from '../kernel/alerts.ts'
import { read } from '../kernel/retry.ts'
import { failDead } from './fail.ts'
import type { Registry } from './sets.ts'
import { clearStaged } from './staging.ts'

const dueStatement = statement(import.meta.url, 'due')
const expireStatement = statement(import.meta.url, 'expire')
const clearedStatement = statement(import.meta.url, 'cleared')
const resolveStatement = statement(import.meta.url, 'resolve-failed')

const everyMs = 10_000
/** Of each kind. */
const dueMax = 100

interface Due {
  tenant: string
  id: string
  record_set: string
  need: 'end' | 'expire' | 'clear'
}

export class Sweep {
  #isStarted = false
  #pause = new AbortController()

  /** Until the pool is closed. It keeps no process alive. */
  start(registry: Registry): void {
    if (this.#isStarted) return
    this.#isStarted = true
    void this.#loop(registry)
  }

  /** Something is due now, such as the rows of a submission that this process committed. */
  wake(): void {
    this.#pause.abort()
  }

  async #loop(registry: Registry): Promise<void> {
    const watch = new Failures(registry).loop('sweep of submissions', registry.pool)
    for (;;) {
      // Processes that were started together do not sweep together.
      const pauseMs = everyMs * (0.75 + Math.random() / 2)
      await sleep(pauseMs, undefined, { signal: this.#pause.signal, ref: false }).catch(() => undefined)
      if (registry.pool.isEnded) return
      this.#pause = new AbortController()
      try {
        if (await sweepOnce(registry)) this.wake()
        watch.succeeded()
      } catch (error) {
        if (!registry.pool.isEnded) watch.failed(error)
      }
    }
  }
}

/** true: there may be more. A submission that fails here does not hold up the others. */
async function sweepOnce(registry: Registry): Promise<boolean> {
  const errors: unknown[] = []
  const found = await read<Due>(registry.pool, dueStatement, { limit: dueMax })
  for (const due of found) await tend(registry, due).catch((error: unknown) => errors.push(error))
  if (errors.length > 0) throw errors[0]
  return found.length >= dueMax
}

async function tend(registry: Registry, { tenant, id, record_set, need }: Due): Promise<void> {
  if (need === 'end') {
    await failDead(registry, tenant, id)
    return
  }
  // Not over after all: it was submitted, or more rows arrived and extended its time.
  if (!(await clearStaged(registry, tenant, id, null))) return
  if (need === 'expire') {
    await read(registry.pool, expireStatement, { tenant, id })
    return
  }
  await read(registry.pool, resolveStatement, { tenant, record_set })
  // Last, so that a crash before it repeats the rest.
  await read(registry.pool, clearedStatement, { tenant, id })
}

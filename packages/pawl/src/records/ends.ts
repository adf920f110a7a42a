// Waiting for the end of submissions: one statement for all that this process waits for, so a thousand waiters cost as much as one.

import { setTimeout as sleep } from 'node:timers/promises'
import { numbersLiteral, statement, textsLiteral } from '../db/statement.ts'
import { isPawlError, PawlError } from '../errors.ts'
import { monotonicMs } from '../kernel/clock.ts'
import { read } from '../kernel/retry.ts'
import type { Registry } from './sets.ts'

const endedStatement = statement(import.meta.url, 'ended')

const pollMsMin = 50
const pollMsMax = 1000

interface Waiter {
  readonly tenant: string
  readonly id: string
  readonly sinceMs: number
  readonly resolve: () => void
  readonly reject: (error: unknown) => void
}

export class Ends {
  readonly #waiting = new Set<Waiter>()
  #isPolling = false
  #pause = new AbortController()

  /** Resolves when the submission has ended or is gone. */
  async wait(registry: Registry, tenant: string, id: string, timeoutMs: number, signal: AbortSignal | undefined): Promise<void> {
    signal?.throwIfAborted()
    const over = new AbortController()
    let waiter: Waiter
    try {
      await new Promise<void>((resolve, reject) => {
        waiter = { tenant, id, sinceMs: monotonicMs(), resolve, reject }
        const timer = setTimeout(() => reject(tooLate(id, timeoutMs)), timeoutMs)
        over.signal.addEventListener('abort', () => clearTimeout(timer))
        signal?.addEventListener('abort', () => reject(signal.reason), { signal: over.signal })
        this.#waiting.add(waiter)
        this.wake()
        if (!this.#isPolling) void this.#poll(registry)
      })
    } finally {
      over.abort()
      this.#waiting.delete(waiter!)
      if (this.#waiting.size === 0) this.wake()
    }
  }

  /** A submission has ended in this process: polls now. */
  wake(): void {
    this.#pause.abort()
  }

  async #poll(registry: Registry): Promise<void> {
    this.#isPolling = true
    while (this.#waiting.size > 0) {
      this.#pause = new AbortController()
      const asked = [...this.#waiting]
      try {
        for (const index of await findEnded(registry, asked)) asked[index]!.resolve()
      } catch (error) {
        // A database that is away for a moment comes back; each waiter has its own timeout.
        if (!isPawlError(error, 'PAWL_UNAVAILABLE')) for (const { reject } of asked) reject(error)
      }
      await sleep(this.#pauseMs(), undefined, { signal: this.#pause.signal }).catch(() => undefined)
    }
    this.#isPolling = false
  }

  /** A tenth of the youngest wait: a short one is answered soon, a long one costs a statement a second. */
  #pauseMs(): number {
    const youngestMs = Math.min(...[...this.#waiting].map(({ sinceMs }) => monotonicMs() - sinceMs))
    return Math.min(pollMsMax, Math.max(pollMsMin, youngestMs / 10))
  }
}

async function findEnded(registry: Registry, asked: readonly Waiter[]): Promise<number[]> {
  const rows = await read<{ ordinal: number }>(registry.pool, endedStatement, {
    tenants: textsLiteral(asked.map(({ tenant }) => tenant)),
    ids: numbersLiteral(asked.map(({ id }) => id)),
  })
  return rows.map(({ ordinal }) => ordinal - 1)
}

function tooLate(id: string, timeoutMs: number): PawlError {
  return new PawlError(
    'PAWL_TIMED_OUT',
    `Submission ${id} did not end within ${timeoutMs} ms. It is still running; records.why('${id}') says what it waits for.`,
    { details: { id } },
  )
}

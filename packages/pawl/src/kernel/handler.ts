// Where a handler runs: inside a transaction, for a tenant, and beside which others.

import { AsyncLocalStorage } from 'node:async_hooks'

// ---- transaction

// The tx handler that a call is made in. A call without the handler's transaction would wait for the very pool that the handler occupies.

interface TxHandler {
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

// ---- tenant

// A handler runs as its job's tenant: what it enqueues, appends or submits through a handle without a tenant of its own
// belongs to that tenant. Outside of handlers such a handle is the empty tenant's.

const current = new AsyncLocalStorage<string>()

export function currentTenant(): string {
  return current.getStore() ?? ''
}

/** Promises cost more while AsyncLocalStorage is in use, so a job without a tenant is called as it is. */
export function runAs<Answer>(tenant: string, work: () => Answer): Answer {
  return currentTenant() === tenant ? work() : current.run(tenant, work)
}

// ---- solitude

// A deciding run has no cursor beside it in this process, whichever Pawl objects they belong to. Handlers of projections, refreshes and calls of
// sinks run inside. A deciding run asks: from then on nothing gets inside, and the run may start when everything inside has ended.

export interface Ask {
  readonly onGranted: () => void
  /** A cursor came while it was closed. */
  hasKeptOut: boolean
}

export class Solitude {
  readonly #asked: Ask[] = []
  readonly #openedListeners = new Set<() => void>()
  #inside = 0

  get isBusy(): boolean {
    return this.#inside > 0
  }

  /** Whether a deciding run is in progress or asked; the caller counts as kept out then. */
  isClosed(): boolean {
    const [first] = this.#asked
    if (first !== undefined) first.hasKeptOut = true
    return first !== undefined
  }

  /** The listener is called when cursors that were kept out may go on. Returns what ends that. */
  onOpened(listener: () => void): () => void {
    this.#openedListeners.add(listener)
    return () => void this.#openedListeners.delete(listener)
  }

  /** For callers that are inside already, or have just seen that it is not closed. Returns what ends it. */
  enter(): () => void {
    this.#inside++
    return () => {
      if (--this.#inside === 0) this.#asked[0]?.onGranted()
    }
  }

  /** Does the work inside; undefined where it is closed, and nothing was done. */
  async run<T>(work: () => Promise<T>): Promise<T | undefined> {
    if (this.isClosed()) return undefined
    const leave = this.enter()
    try {
      return await work()
    } finally {
      leave()
    }
  }

  /** Granted one at a time, in the order of asking. */
  ask(onGranted: () => void): Ask {
    const ask = { onGranted, hasKeptOut: false }
    this.#asked.push(ask)
    return ask
  }

  isGranted(ask: Ask): boolean {
    return this.#asked[0] === ask && this.#inside === 0
  }

  end(ask: Ask): void {
    this.#asked.splice(this.#asked.indexOf(ask), 1)
    if (this.#asked.length > 0) this.#asked[0]!.onGranted()
    else for (const listener of this.#openedListeners) listener()
  }
}

/** One for the process. */
export const solitude = new Solitude()

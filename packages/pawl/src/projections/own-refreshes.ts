// The last transactions in which this process refreshed a state projection that ignores the events of its refresh: its cursor passes over these events
// unread. A hint: lost, or in another process, the events are read, and mark nothing.

import type { PassedOver } from '../events/read-log.ts'
import type { StateProjectionOptions } from './types.ts'

type Entity = StateProjectionOptions['entity']

/** Each costs a comparison per position that is read. */
const transactionsMax = 64

/** What a refresh's transaction tells of itself before it appends; all null: its commit could be lost, and another get its id. */
export interface OwnRefresh {
  readonly era: string | null
  readonly head: string | null
  readonly xid: string | null
}

const ignoring = new WeakSet<Entity>()

/** Declares that the function returns nothing for any event of the projection's own refresh, in any release. Pawl's own projections only. */
export function ignoringOwnEvents(entity: Entity): Entity {
  ignoring.add(entity)
  return entity
}

export function ownRefreshesOf(entity: Entity): OwnRefreshes | undefined {
  return ignoring.has(entity) ? new OwnRefreshes() : undefined
}

export class OwnRefreshes {
  #passedOver: PassedOver | undefined

  /** After the commit: a transaction that was rolled back leaves its id to nothing, one without an answer is read. */
  committed({ era, head, xid }: OwnRefresh): void {
    if (era === null || head === null || xid === null) return
    const { xids, heads } = this.#passedOver?.era === era ? this.#passedOver : { xids: [], heads: [] }
    const last = 1 - transactionsMax
    this.#passedOver = { era, xids: [...xids.slice(last), xid], heads: [...heads.slice(last), head] }
  }

  get passedOver(): PassedOver | undefined {
    return this.#passedOver
  }
}

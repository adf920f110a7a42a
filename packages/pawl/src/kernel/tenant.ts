// Whose work this is. A handler runs as its job's tenant: what it enqueues, appends or submits through a handle without a tenant of its own
// belongs to that tenant. Outside of handlers such a handle is the empty tenant's.

import { AsyncLocalStorage } from 'node:async_hooks'

const current = new AsyncLocalStorage<string>()

export function currentTenant(): string {
  return current.getStore() ?? ''
}

/** Promises cost more while AsyncLocalStorage is in use, so a job without a tenant is called as it is. */
export function runAs<Answer>(tenant: string, work: () => Answer): Answer {
  return currentTenant() === tenant ? work() : current.run(tenant, work)
}

// Whose work this is. A handler runs as its job's tenant: what it enqueues, appends or submits through a handle without a tenant of its own
// belongs to that tenant. Outside of handlers such a handle is the empty tenant's.

import { AsyncLocalStorage } from 'node:async_hooks'
import { PawlError } from '../errors.ts'

const current = new AsyncLocalStorage<string>()
const charsMax = 100

export function currentTenant(): string {
  return current.getStore() ?? ''
}

/** Promises cost more while AsyncLocalStorage is in use, so a job without a tenant is called as it is. */
export function runAs<Answer>(tenant: string, work: () => Answer): Answer {
  return currentTenant() === tenant ? work() : current.run(tenant, work)
}

/** The empty tenant is the root handle's, and what is no string would be stored under some other name. */
export function assertTenant(tenant: unknown): asserts tenant is string {
  const isText = typeof tenant === 'string'
  // Characters, as the server counts them.
  if (isText && tenant.length > 0 && [...tenant].length <= charsMax && tenant.isWellFormed() && !tenant.includes('\u0000')) return
  const got = isText
    ? `'${tenant.slice(0, charsMax)}' of ${[...tenant].length} characters`
    : String(tenant === null ? null : typeof tenant)
  throw new PawlError('PAWL_CONFIG', `A tenant is a string of 1 to ${charsMax} characters without NUL, got ${got}.`)
}

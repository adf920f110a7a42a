// When the outbox is at rest. Until then somebody mends whatever is parked.

import { mendAll } from '../events/mend.ts'
import { isAtRest as isLogAtRest } from '../events/rest.ts'
import type { Rig } from '../rig.ts'

export async function isAtRest(rig: Rig): Promise<boolean> {
  await mendAll(rig.admin).catch(() => undefined)
  return isLogAtRest(rig)
}

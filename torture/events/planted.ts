// The planted bugs of both scenarios: they share the writers, and each process finds its own by name.

import type { Canary } from '../canary.ts'
import { canaries as outbox } from '../outbox/canaries.ts'
import { canaries as projections } from '../projections/canaries.ts'

export const planted: readonly Canary[] = [...outbox, ...projections]

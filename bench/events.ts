// The benchmark of the event log: what an append costs its transaction, and how soon an event is with its handler.

import type { Bench } from './harness/bench.ts'
import { append } from './measures/events/append.ts'
import { bulkAppend } from './measures/events/bulk-append.ts'
import { delivery } from './measures/events/delivery.ts'

export const events: Bench = { name: 'events', groups: [append, bulkAppend, delivery], packages: ['pg', 'pg-copy-streams'] }

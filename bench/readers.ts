// The ways in which outboxes are read, side by side on one load: what each loses, swaps, holds up and how far it is behind.

import type { Bench } from './harness/bench.ts'
import { readers } from './measures/events/readers.ts'

export const readersBench: Bench = { name: 'readers', groups: [readers], packages: ['pg'] }

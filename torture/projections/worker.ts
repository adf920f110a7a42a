// A process that runs the projections of the storm.

import { runProjections } from '../events/runner-process.ts'
import { defineProjections } from './handlers.ts'

await runProjections(defineProjections, import.meta.url)

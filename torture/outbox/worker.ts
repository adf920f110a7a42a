// A process that gives positions and delivers.

import { runProjections } from '../events/runner-process.ts'
import { defineHandlers } from './handlers.ts'

await runProjections(defineHandlers, import.meta.url)

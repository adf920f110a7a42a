// Who waits for a notification. The statements only; jobs/sleep.ts says when.

import { statement } from '../db/statement.ts'

export const sleepStatements = {
  awake: statement(import.meta.url, 'awake'),
  sleep: statement(import.meta.url, 'sleep'),
  snapshot: statement(import.meta.url, 'snapshot'),
  stillOpen: statement(import.meta.url, 'still-open'),
} as const

// The benchmark of records: submissions beside COPY of the same rows, what ten versions of everything cost, and what a kill costs.

import type { Bench } from './harness/bench.ts'
import { reads, tenth, versionsInArray } from './measures/records/history.ts'
import { kill } from './measures/records/kill.ts'
import { memory } from './measures/records/memory.ts'
import { size } from './measures/records/size.ts'
import { submissions } from './measures/records/submissions.ts'

export const records: Bench = {
  name: 'records',
  groups: [submissions, tenth, size, memory, versionsInArray, reads, kill],
  packages: ['pg', 'pg-copy-streams'],
}

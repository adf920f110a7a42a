// The benchmark of documents: renames and their refresh beside a native cascade and a rewrite of JSONB, reads beside plain tables, posts beside COPY.

import type { Bench } from './harness/bench.ts'
import { bulk } from './measures/documents/bulk.ts'
import { inserts } from './measures/documents/inserts.ts'
import { reads } from './measures/documents/reads.ts'
import { oneLevel, twoLevels } from './measures/documents/renames.ts'

export const documents: Bench = {
  name: 'documents',
  groups: [oneLevel, twoLevels, inserts, reads, bulk],
  packages: ['pg', 'pg-copy-streams'],
}

// The three tiers of tests, by file name. `x.test.ts` needs no database, `x.pg.test.ts` runs on a real PostgreSQL in one process, and
// `x.slow.test.ts` starts processes, kills them, waits for real time or moves a lot of data.

export type Tier = 'unit' | 'pg' | 'slow'

export function tierOf(file: string): Tier {
  if (file.endsWith('.slow.test.ts')) return 'slow'
  return file.endsWith('.pg.test.ts') ? 'pg' : 'unit'
}

/** Limits of a pg test: over the first it is a warning, over the second it belongs into the slow tier. */
export const pgTestMs = { warning: 3000, slow: 10_000 } as const

export interface Smoke {
  readonly file: string
  /** A part of the title of each test that runs. */
  readonly titles: readonly string[]
}

const processes = (name: string): string => `packages/pawl/test/processes/${name}.slow.test.ts`

/** What `npm test` runs of the slow tier, alone on the machine: one test for each way in which a process can end or stall. */
export const smoke: readonly Smoke[] = [
  { file: processes('kill'), titles: ["[J3] after kill -9 of a worker its 'tx' jobs run again"] },
  { file: processes('stop'), titles: ["when it goes on ('tx', successor 'still runs it')"] },
  { file: processes('crash-points'), titles: ["killed at 'jobs.tx.before_commit' (1)"] },
  { file: processes('projections'), titles: ["a projector killed at 'projections.batch.handled', time 2"] },
  { file: processes('records'), titles: ['[R4] kill -9 around the commit'] },
  { file: processes('pooler'), titles: ['with a direct connection beside it: false > [K8] enqueue alone'] },
  { file: 'packages/server/src/cli/dev.slow.test.ts', titles: ['npm start runs the demonstration'] },
  { file: 'torture/torture.slow.test.ts', titles: ['a storm of ten seconds', 'the planted bug'] },
]

/** A pattern of vitest's that matches the titles of the smoke; vitest joins the names of suites with a space, and we with ' > '. */
export function smokePattern(entries: readonly Smoke[] = smoke): string {
  return entries
    .flatMap(({ titles }) => titles)
    .map((title) => title.replace(/[.*+?^${}()|[\]\\]/g, '\\$&').replace(' > ', ' (?:> )?'))
    .join('|')
}

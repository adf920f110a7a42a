// The results of the benchmarks as they are published: what docs/benchmarks.md shows of them, and whether they are of this code.

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { commitsSince } from '../bench/harness/commit.ts'
import type { Published } from '../bench/harness/publish.ts'
import { root } from './phase.ts'

const folder = join(root, 'bench', 'results')

export function readPublished(): Published[] {
  return readdirSync(folder).map((file) => JSON.parse(readFileSync(join(folder, file), 'utf8')) as Published)
}

/** One line for each benchmark whose results are older than the code, or may be. */
export function oldResults(published: readonly Published[] = readPublished(), since = commitsSince): string[] {
  return published.flatMap(({ bench, measures }) => {
    const ages = measures.map(({ detail: { commit } }) => (commit === undefined ? undefined : since(commit)))
    if (ages.includes(undefined)) return [`${bench}: measured at a commit that this clone does not have`]
    const oldest = Math.max(0, ...(ages as number[]))
    return oldest === 0 ? [] : [`${bench}: ${oldest} ${oldest === 1 ? 'commit' : 'commits'} older than the code`]
  })
}

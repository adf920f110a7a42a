// Which code a result was measured with, and how much of it has changed since.

import { execFileSync } from 'node:child_process'
import { dirname } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(dirname(dirname(fileURLToPath(import.meta.url)))))
/** What a change to makes results old. */
const sources = ['packages/pawl/src', 'packages/pawl/migrations', ':(exclude)*.test.ts']

export function git(...args: readonly string[]): string {
  return execFileSync('git', args, { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim()
}

/** The commit that is checked out, with a '+' where the sources differ from it; undefined outside of a clone. */
export function currentCommit(): string | undefined {
  try {
    const commit = git('rev-parse', '--short=10', 'HEAD')
    return git('status', '--porcelain', '--', ...sources) === '' ? commit : `${commit}+`
  } catch {
    return undefined
  }
}

/** How many commits have changed the sources since this one; undefined where this clone cannot tell. */
export function commitsSince(commit: string): number | undefined {
  try {
    return Number(git('rev-list', '--count', `${commit.replace('+', '')}..HEAD`, '--', ...sources))
  } catch {
    return undefined
  }
}

// What the records of a scope must be: the committed submissions one after the other, each with the rows that its sender wrote down before
// sending them. Nothing in it is taken from what Pawl computed, but the order of the commits.

import type { Entry } from '../history.ts'
import { digestOf } from './actor.ts'
import { type Facts, groupBy, type StoredScope, type StoredSubmission } from './facts.ts'
import { type Marked, sets } from './sets.ts'

/** The rows that a submission was asked with. */
export interface Content {
  readonly rows: readonly Marked[]
  /** Records that it leaves out are deleted by it. */
  readonly isWhole: boolean
}

export interface Current {
  readonly mark: string
  readonly number: number
  readonly submission: string
}

export interface ModelVersion {
  readonly key: string
  readonly number: number
  readonly submission: string
  readonly status: 'CREATED' | 'UPDATED' | 'DELETED'
  readonly mark: string | null
}

export interface Step {
  readonly submission: StoredSubmission
  /** Undefined: nobody ever asked for it. */
  readonly content: Content | undefined
  readonly counts: { readonly created: number; readonly updated: number; readonly unchanged: number; readonly deleted: number }
  readonly versions: readonly ModelVersion[]
  /** What a reader sees from here on. */
  readonly digest: string
  readonly live: number
}

export interface Line {
  readonly scope: StoredScope
  readonly steps: readonly Step[]
}

export const emptyDigest = digestOf([])

export function foldAll(facts: Facts): Line[] {
  const asked = contents(facts.entries)
  const committed = groupBy(
    facts.submissions.filter((submission) => submission.state === 'submitted'),
    (submission) => submission.scope,
  )
  return facts.scopes.map((scope) => {
    const state = new Map<string, Current>()
    const steps = (committed.get(scope.id) ?? [])
      .toSorted((one, other) => one.number! - other.number!)
      .map((submission) => step(state, scope, submission, asked))
    return { scope, steps }
  })
}

/** An upload is known by its name, which a rebase keeps; a put or append by who it is by. */
function contents(entries: readonly Entry[]): ReadonlyMap<string, readonly Marked[]> {
  const asked = new Map<string, readonly Marked[]>()
  for (const entry of entries) {
    if (entry.ph !== 'invoke') continue
    if (entry.op === 'upload') asked.set(`upload ${String(entry.key)}`, entry.rows as Marked[])
    if (entry.op === 'append') asked.set(`append ${String(entry.mark)}`, entry.rows as Marked[])
    if (entry.op === 'put') asked.set(`put ${String(entry.mark)}`, [[String(entry.key), String(entry.mark)]])
  }
  return asked
}

function contentOf(
  scope: StoredScope,
  { origin, name, by }: StoredSubmission,
  asked: ReadonlyMap<string, readonly Marked[]>,
): Content | undefined {
  const isUpload = origin === 'upload' || origin === 'rebase'
  const rows = asked.get(isUpload ? `upload ${name}` : `${origin} ${by}`)
  return rows === undefined ? undefined : { rows, isWhole: isUpload && sets[scope.set].missing === 'tombstone' }
}

function step(
  state: Map<string, Current>,
  scope: StoredScope,
  submission: StoredSubmission,
  asked: ReadonlyMap<string, readonly Marked[]>,
): Step {
  const content = contentOf(scope, submission, asked)
  const versions: ModelVersion[] = []
  let unchanged = 0
  const write = (key: string, mark: string | null, status: ModelVersion['status']) => {
    const version = { key, number: submission.number!, submission: submission.id, status, mark }
    versions.push(version)
    if (mark === null) state.delete(key)
    else state.set(key, { ...version, mark })
  }
  const left = new Set(content?.isWhole ? state.keys() : [])
  for (const [key, mark] of content?.rows ?? []) {
    const current = state.get(key)
    left.delete(key)
    if (mark === null) {
      if (current !== undefined) write(key, null, 'DELETED')
    } else if (current === undefined) write(key, mark, 'CREATED')
    else if (current.mark === mark) unchanged++
    else write(key, mark, 'UPDATED')
  }
  for (const key of left) write(key, null, 'DELETED')
  const count = (status: ModelVersion['status']) => versions.filter((version) => version.status === status).length
  return {
    submission,
    content,
    counts: { created: count('CREATED'), updated: count('UPDATED'), unchanged, deleted: count('DELETED') },
    versions,
    digest: digestOf([...state].map(([key, current]) => ({ ...current, key, number: String(current.number) }))),
    live: state.size,
  }
}

/** What a reader of this number sees. */
export function digestAt({ steps }: Line, number: number): string {
  return steps.findLast(({ submission }) => submission.number! <= number)?.digest ?? emptyDigest
}

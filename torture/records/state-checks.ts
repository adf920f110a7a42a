// The checks of a submission's states: which changes there were, who asked for them, and what they found.

import { type Change, type Facts, type Find, groupBy } from './facts.ts'

const legal: Readonly<Record<string, readonly string[]>> = {
  uploading: ['uploading', 'validating', 'invalid', 'upload-failed'],
  'upload-failed': ['uploading'],
  validating: ['uploading', 'validated', 'invalid', 'upload-failed'],
  // Submitted at once: it changes nothing.
  validated: ['submitting', 'submitted', 'superseded'],
  submitting: ['submitted', 'failed'],
  failed: ['submitting', 'superseded'],
}

/** Changes follow the diagram and count the revision up by one; each submit that was answered yes is one change, of the revision it named. */
export function statesAndRevisions(facts: Facts, find: Find): number {
  for (const change of facts.changes) {
    const { submission, from, to, oldRevision, newRevision, actor } = change
    const text = `submission ${submission}: ${from ?? 'nothing'} -> ${to ?? 'nothing'} by ${actor}`
    if (from === null ? !['uploading', 'submitted'].includes(to!) : to !== null && !legal[from]?.includes(to))
      find(`${text} is not a legal change`)
    if (from !== null && to !== null && newRevision !== oldRevision! + 1)
      find(`${text} took its revision from ${oldRevision} to ${newRevision}`)
  }
  const taken = groupBy(
    facts.changes.filter(({ from, to }) => to === 'submitting' || (from === 'validated' && to === 'submitted')),
    ({ submission }) => submission,
  )
  let looked = facts.changes.length
  for (const op of ['submit', 'resume']) {
    const entries = groupBy(
      facts.entries.filter((entry) => entry.op === op),
      (entry) => String(entry.id),
    )
    for (const [id, list] of entries) {
      const from = op === 'submit' ? 'validated' : 'failed'
      const changes = (taken.get(id) ?? []).filter((change) => change.from === from)
      const count = (ph: string) => list.filter((entry) => entry.ph === ph).length
      const unknown = count('invoke') - count('ok') - count('fail')
      looked += list.length
      if (changes.length < count('ok') || changes.length > count('ok') + unknown)
        find(
          `submission ${id}: ${op} was answered yes ${count('ok')} times, not at all ${unknown} times, and happened ${changes.length} times`,
        )
      for (const entry of list.filter(({ ph }) => ph === 'ok')) compare(op, entry, changes, find)
    }
  }
  return looked
}

function compare(op: string, entry: Readonly<Record<string, unknown>>, changes: readonly Change[], find: Find): void {
  const change = changes.find(({ newRevision }) => newRevision === entry.revision)
  const text = `submission ${String(entry.id)}: ${op} of revision ${String(entry.named)}`
  if (change === undefined) find(`${text} was answered with revision ${String(entry.revision)}, which it never had`)
  else if (change.oldRevision !== entry.named) find(`${text} was done, and it was at revision ${change.oldRevision}`)
  else if (String(change.number) !== entry.number)
    find(`${text} was answered with number ${String(entry.number)}, and took ${change.number}`)
}

export function oneSubmitting(facts: Facts, find: Find): number {
  const holders = new Map<string, string>()
  let looked = 0
  for (const { scope, submission, from, to, actor } of facts.changes) {
    if (from === 'submitting' && holders.get(scope) === submission) holders.delete(scope)
    const isAtOnce = from === 'validated' && to === 'submitted'
    if (to !== 'submitting' && !isAtOnce) continue
    looked++
    const holder = holders.get(scope)
    if (holder !== undefined)
      find(`submission ${submission} took the slot of scope ${scope} by ${actor} while submission ${holder} had it`)
    if (!isAtOnce) holders.set(scope, submission)
  }
  return looked
}

/** What is applied was compared with the very state that it is applied to: a person agreed to that preview and to no other. */
export function baselineCurrent(facts: Facts, find: Find): number {
  const taken = facts.changes.filter(({ to }) => to === 'submitting')
  for (const { submission, baseline, scopeRevision, actor } of taken) {
    if (baseline !== scopeRevision)
      find(`submission ${submission} was compared with revision ${baseline} and submitted at ${scopeRevision} by ${actor}`)
  }
  return taken.length
}

// The checks. Each is a promise of records as a program over the facts: how much it looked at, and what it found against the promise.

import type { Violation } from '../scenario.ts'
import { type Facts, type Find, groupBy } from './facts.ts'
import { foldAll, type Line } from './model.ts'
import { allOrNothing, readsGoForward } from './read-checks.ts'
import { baselineCurrent, oneSubmitting, statesAndRevisions } from './state-checks.ts'

/** Gives how many things it looked at. */
type Check = (facts: Facts, find: Find, lines: readonly Line[]) => number

export const checks = {
  'all or nothing': allOrNothing,
  'reads go forward': readsGoForward,
  'counts add up': countsAddUp,
  'history is the sequence': historyIsTheSequence,
  'no lost update': noLostUpdate,
  'nothing left behind': nothingLeftBehind,
  'written by its holder': writtenByHolder,
  'one event each': oneEventEach,
  'one submitting per scope': oneSubmitting,
  'states and revisions': statesAndRevisions,
  'baseline current': baselineCurrent,
  'all at rest': allAtRest,
} satisfies Record<string, Check>

export type CheckName = keyof typeof checks

export function check(facts: Facts): { checks: Record<string, number>; violations: Violation<CheckName>[] } {
  const counted: Record<string, number> = {}
  const violations: Violation<CheckName>[] = []
  const lines = foldAll(facts)
  for (const [name, run] of Object.entries(checks)) {
    counted[name] = run(facts, (message) => violations.push({ check: name as CheckName, message }), lines)
  }
  return { checks: counted, violations }
}

/** Staged = created + updated + unchanged, each is what its sender's rows ask for, and the scope counts what is there. */
function countsAddUp(facts: Facts, find: Find, lines: readonly Line[]): number {
  for (const { scope, steps } of lines) {
    for (const { submission, content, counts } of steps) {
      const text = `submission ${submission.id} of ${scope.set}/${scope.place}`
      const { lines: staged, created, updated, unchanged, deleted } = submission
      if (staged !== created + updated + unchanged)
        find(`${text} staged ${staged} rows and accounts for ${created} + ${updated} + ${unchanged}`)
      if (content === undefined) find(`${text} was asked for by nobody`)
      const told = JSON.stringify({ created, updated, unchanged, deleted })
      if (content !== undefined && told !== JSON.stringify(counts))
        find(`${text} says ${told}; its rows after those before it are ${JSON.stringify(counts)}`)
    }
    const last = steps.at(-1)
    if (last !== undefined && scope.live !== last.live)
      find(`${scope.set}/${scope.place} says that ${scope.live} records are live, and there are ${last.live}`)
    if (scope.committed !== (last?.submission.number ?? 0))
      find(`${scope.set}/${scope.place} is committed up to ${scope.committed}, and its last is ${last?.submission.number ?? 0}`)
  }
  // The database refuses such a commit, and that is the last line of defence: nothing of it is seen, and it fails for ever.
  for (const { id, error } of facts.submissions.filter(({ state }) => state === 'failed'))
    if (error?.includes('counts_proved')) find(`submission ${id} has lost staged rows: ${error}`)
  for (const entry of facts.entries.filter(({ op, ph }) => op === 'preview' && ph === 'ok')) {
    const counts = entry.counts as { created: number; updated: number; missing: number }
    const listed = [entry.created, entry.updated]
    if (JSON.stringify(listed) !== JSON.stringify([Math.min(counts.created, 500), Math.min(counts.updated, 500)]))
      find(
        `the preview of submission ${String(entry.id)} lists ${listed.join(' and ')} rows and counts ${JSON.stringify(counts)}`,
      )
  }
  return lines.reduce((sum, { steps }) => sum + steps.length, 0)
}

/** The versions of each record are the changes that the committed submissions made to it, each once, none between, none missing. */
function historyIsTheSequence(facts: Facts, find: Find, lines: readonly Line[]): number {
  const textOf = (version: { number: number; submission: string; status: string; mark: string | null }) =>
    `${version.number} ${version.status} ${version.mark ?? '-'} by ${version.submission}`
  const stored = groupBy(facts.versions, ({ scope, key }) => `${scope} ${key}`)
  let looked = 0
  for (const { scope, steps } of lines) {
    const numbers = groupBy(steps, ({ submission }) => String(submission.number))
    for (const [number, list] of numbers)
      if (list.length > 1)
        find(
          `${scope.set}/${scope.place} has ${list.length} commits under number ${number}: ${list.map(({ submission }) => submission.id).join(', ')}`,
        )
    const wanted = groupBy(
      steps.flatMap(({ versions }) => versions),
      ({ key }) => key,
    )
    const keys = new Set([
      ...wanted.keys(),
      ...facts.versions.filter((version) => version.scope === scope.id).map(({ key }) => key),
    ])
    for (const key of keys) {
      const found = (stored.get(`${scope.id} ${key}`) ?? []).map(textOf)
      const should = (wanted.get(key) ?? []).map(textOf)
      looked += found.length
      const at = found.findIndex((text, index) => text !== should[index])
      const first = at >= 0 ? at : found.length < should.length ? found.length : -1
      if (first >= 0)
        find(
          `${scope.set}/${scope.place} ${key}: version ${first + 1} is [${found[first] ?? 'missing'}], and the committed submissions make it [${should[first] ?? 'nothing'}]`,
        )
    }
  }
  for (const { submission, number } of facts.orphans) find(`a version ${number} of submission ${submission} belongs to no record`)
  return looked
}

/**
 * A put or append that was answered yes is there once, behind the very version that it named; one that was refused is not; of one that
 * nobody knows, all or nothing. What the caller wrote beside it is there if and only if it is.
 */
function noLostUpdate(facts: Facts, find: Find, lines: readonly Line[]): number {
  const bySender = groupBy(
    facts.submissions.filter(({ origin }) => origin === 'put' || origin === 'append'),
    ({ origin, by }) => `${origin} ${by}`,
  )
  const scopes = new Map(lines.map(({ scope }) => [`${scope.set}/${scope.place}`, scope.id]))
  const versions = groupBy(facts.versions, ({ scope, key }) => `${scope} ${key}`)
  const writes = facts.entries.filter(({ op }) => op === 'put' || op === 'append')
  const answers = new Map(writes.filter(({ ph }) => ph !== 'invoke').map((entry) => [String(entry.mark), entry]))
  const asked = writes.filter(({ ph }) => ph === 'invoke')
  for (const invoke of asked) {
    const mark = String(invoke.mark)
    const answer = answers.get(mark)
    const found = bySender.get(`${invoke.op} ${mark}`) ?? []
    const text = `${invoke.op} ${mark} to ${String(invoke.set)}/${String(invoke.place)} ${String(invoke.key ?? '')} was answered ${answer?.ph ?? 'by nobody'}`
    const isChange = answer?.ph !== 'ok' || answer.submission !== null
    if (found.length > 1) find(`${text}, and it is there ${found.length} times`)
    if (answer?.ph === 'ok' && found.length !== (isChange ? 1 : 0)) find(`${text}, and it is there ${found.length} times`)
    if (answer?.ph === 'fail' && found.length > 0) find(`${text} (${String(answer.code)}), and it is there`)
    if (found.some(({ state }) => state !== 'submitted')) find(`${text}, and it is ${found[0]!.state}`)
    if (invoke.isOwn === true && isChange && facts.beside.has(mark) !== found.length > 0)
      find(`${text}, and what its caller wrote beside it did not commit with it`)
    if (invoke.op !== 'put' || found.length === 0) continue
    const history = versions.get(`${scopes.get(`${String(invoke.set)}/${String(invoke.place)}`)} ${String(invoke.key)}`) ?? []
    const place = history.findIndex(({ submission }) => submission === found[0]!.id)
    const before = history[place - 1]
    const behind = before === undefined || before.status === 'DELETED' ? '0' : String(before.number)
    if (place < 0) find(`${text}, and its version is not in the history`)
    else if (behind !== invoke.number) find(`${text}: it named version ${String(invoke.number)}, and overwrote version ${behind}`)
  }
  return asked.length
}

/** Every version is of a committed submission, under its number; what is given up has left nothing when its slot is free. */
function nothingLeftBehind(facts: Facts, find: Find): number {
  const submissions = new Map(facts.submissions.map((submission) => [submission.id, submission]))
  const strange = new Map<string, number>()
  for (const version of facts.versions) {
    const submission = submissions.get(version.submission)
    if (submission?.state === 'submitted' && submission.number === version.number && submission.scope === version.scope) continue
    const text = `submission ${version.submission}, which is ${submission?.state ?? 'gone'} with number ${submission?.number ?? '-'}, has versions under ${version.number}`
    strange.set(text, (strange.get(text) ?? 0) + 1)
  }
  for (const [text, count] of strange) find(`${text}: ${count}`)
  const ended = facts.changes.filter(({ to }) => to === 'failed' || to === 'superseded')
  for (const { submission, to, leftOver, actor } of ended) {
    if (leftOver > 0)
      find(`submission ${submission} was made ${to} by ${actor}, and ${leftOver} of its versions were still there`)
  }
  for (const { key, scope } of facts.empty) find(`record ${key} of scope ${scope} has no version`)
  return facts.versions.length + ended.length
}

/** Chunks are written, and taken back, by who holds the job; what has no holder is ended by anybody, and only purged. */
function writtenByHolder(facts: Facts, find: Find): number {
  const submissions = new Map(facts.submissions.map((submission) => [submission.id, submission]))
  const chunks = facts.written.filter(({ submission }) => !['put', 'append'].includes(submissions.get(submission)?.origin ?? ''))
  for (const { actor, what, submission, number, versions, holder, jobState } of chunks) {
    const isHolders = actor.split(' ')[0] === holder && jobState === 'running'
    if (!isHolders && !(what === 'delete' && jobState !== 'running'))
      find(
        `${actor} did ${what} ${versions} versions of submission ${submission} under ${number}; its job was ${jobState ?? 'gone'}, held by ${holder ?? 'nobody'}`,
      )
  }
  return chunks.length
}

/** One event for each commit and each failure and none for anything else, in the order of the commits; one per changed record where that is asked for. */
function oneEventEach(facts: Facts, find: Find, lines: readonly Line[]): number {
  const commits = groupBy(
    facts.events.filter(({ type }) => type === 'submission.committed'),
    ({ submission }) => submission,
  )
  const changes = groupBy(
    facts.events.filter(({ type }) => type.startsWith('record.')),
    ({ submission }) => submission,
  )
  const known = new Set<string>()
  for (const { scope, steps } of lines) {
    for (const { submission, versions } of steps) {
      known.add(submission.id)
      const found = commits.get(submission.id) ?? []
      if (found.length !== 1) find(`submission ${submission.id} is committed and has ${found.length} events`)
      const { number, created, updated, unchanged, deleted } = submission
      const wrong = found.find(
        (event) =>
          JSON.stringify([event.number, event.created, event.updated, event.unchanged, event.deleted]) !==
          JSON.stringify([number, created, updated, unchanged, deleted]),
      )
      if (wrong !== undefined) find(`the event of submission ${submission.id} says ${JSON.stringify(wrong)}`)
      const wanted = scope.set === 'whole' ? versions.length : 0
      const perRecord = changes.get(submission.id)?.length ?? 0
      if (perRecord !== wanted)
        find(`submission ${submission.id} has ${perRecord} events of single records for ${wanted} changes`)
    }
    const order = facts.events
      .filter(
        ({ type, submission }) => type === 'submission.committed' && steps.some((step) => step.submission.id === submission),
      )
      .map(({ number }) => number)
    if (order.some((number, index) => index > 0 && number < order[index - 1]!))
      find(`the events of ${scope.set}/${scope.place} are not in the order of its commits: ${order.join(', ')}`)
  }
  for (const id of new Set([...commits.keys(), ...changes.keys()]))
    if (!known.has(id)) find(`there is an event of submission ${id}, which is not committed`)
  failuresAreEvents(facts, find)
  return facts.events.length
}

function failuresAreEvents(facts: Facts, find: Find): void {
  const told = groupBy(
    facts.events.filter(({ type }) => type === 'submission.failed'),
    ({ submission }) => submission,
  )
  const failed = groupBy(
    facts.changes.filter(({ to }) => to === 'failed'),
    ({ submission }) => submission,
  )
  for (const id of new Set([...told.keys(), ...failed.keys()])) {
    const [events, changes] = [told.get(id)?.length ?? 0, failed.get(id)?.length ?? 0]
    if (events !== changes) find(`submission ${id} failed ${changes} times and has ${events} events of that`)
  }
}

function allAtRest(facts: Facts, find: Find): number {
  const stuck = facts.submissions.filter(({ state }) => state === 'submitting')
  for (const { id, number } of stuck) find(`submission ${id} is still submitting under number ${number} after healing`)
  const jobs = facts.liveJobs.filter(({ state }) => state !== 'dead')
  if (jobs.length > 0)
    find(
      `${jobs.length} apply job(s) did not come to an end after healing: ${jobs[0]!.id} is ${jobs[0]!.state} (${jobs[0]!.error ?? ''})`,
    )
  if (facts.staged > 0) find(`${facts.staged} staged rows of committed submissions were not cleared`)
  for (const { id, state, error } of facts.submissions.filter(({ state }) => state === 'failed'))
    if (error === null) find(`submission ${id} is ${state} without a reason`)
  if (!facts.isDrained && stuck.length + jobs.length + facts.staged === 0)
    find('not everything came to rest in time after healing')
  for (const slot of facts.notStopped) find(`${slot} did not stop in order after healing`)
  return facts.submissions.length
}

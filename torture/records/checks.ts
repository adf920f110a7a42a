// The checks of records, and the model that they compare with: a fold of the senders' own rows in the order of the committed numbers.

import { type Check, count, groupBy, type Judged, judged, type RunEnd, readFacts, told } from '../checks.ts'
import type { Entry } from '../history.ts'
import { type Change, changesOf } from '../recorder.ts'
import type { Rig } from '../rig.ts'
import { digestOf, type Marked, type Place, sets } from './traffic.ts'

// ---- facts

type SubmissionChange = Change<'id' | 'scope_id' | 'state' | 'revision', 'number' | 'baseline' | 'scope_revision' | 'left_over'>

type StoredScope = Place & { id: string; committed: number; live: number }
type Counts = Record<'created' | 'updated' | 'unchanged' | 'deleted', number>
type StoredSubmission = Counts &
  Record<'id' | 'scope' | 'origin' | 'state', string> &
  Record<'name' | 'by' | 'error', string | null> & { number: number | null; lines: number }
type StoredVersion = Record<'scope' | 'key' | 'submission' | 'status', string> & { number: number; mark: string | null }
type StoredEvent = Counts & { type: string; submission: string; number: number }

async function readRecordFacts(rig: Rig, end: RunEnd) {
  const facts = await readFacts(rig, end, async (rows) => {
    const changes: SubmissionChange[] = await changesOf(rows, 'submission')
    const written: Change<'submission' | 'number' | 'rows', 'holder' | 'job_state'>[] = await changesOf(rows, 'record_version')
    const beside = await rows<{ mark: string }>('select mark from torture.beside')
    const [counted] = await rows<{ staged: number; takeOvers: number }>(
      `select (select count(*) from pawl.submission u join pawl.submission_row r on r.tenant = u.tenant and r.submission = u.id
          where u.state = 'submitted')::integer as staged,
         (select count(*) from pawl.job_attempt where kind = 'pawl.records.apply' and outcome = 'crashed')::integer as "takeOvers"`,
    )
    return {
      changes,
      written,
      /** Marks of puts whose caller wrote a row beside them. */
      beside: new Set(beside.map(({ mark }) => mark)),
      /** Staged rows of what is committed, and attempts of an apply that ended with their process. */
      ...counted!,
      scopes: await rows<StoredScope>(
        `select id, record_set as set, scope::jsonb ->> 0 as place, committed::integer, live::integer from pawl.record_scope order by id`,
      ),
      submissions: await rows<StoredSubmission>(
        `select id, scope_id as scope, origin, state, number::integer, name, submitted_by as by, lines::integer, created::integer, updated::integer,
           unchanged::integer, deleted::integer, error
         from pawl.submission order by scope_id, number, id`,
      ),
      versions: await rows<StoredVersion>(
        `select r.scope_id as scope, r.key, v.number::integer, v.submission, v.status, v.data ->> 'mark' as mark
         from pawl.record r join pawl.record_version v on v.tenant = r.tenant and v.record_id = r.id order by r.scope_id, r.key, v.number`,
      ),
      /** Records without a version, and versions without a record. */
      empty: await rows<{ scope: string; key: string }>(
        `select r.scope_id as scope, r.key from pawl.record r
         where not exists (select from pawl.record_version v where v.tenant = r.tenant and v.record_id = r.id)`,
      ),
      orphans: await rows<{ submission: string; number: string }>(
        `select v.submission, v.number from pawl.record_version v
         where not exists (select from pawl.record r where r.tenant = v.tenant and r.id = v.record_id)`,
      ),
      events: await rows<StoredEvent>(
        `select e.type, d.* from pawl.event e
         cross join lateral jsonb_to_record(e.payload)
           as d(submission text, number integer, created integer, updated integer, unchanged integer, deleted integer)
         where e.aggregatetype in ('kept', 'whole', 'bulk') order by e.seq`,
      ),
      liveJobs: await rows<{ id: string; state: string; error: string | null }>(
        "select id, state, last_error as error from pawl.job where kind = 'pawl.records.apply' and state <> 'dead' order by id",
      ),
    }
  })
  return { ...facts, lines: foldAll(facts.entries, facts.scopes, facts.submissions) }
}

type Facts = Awaited<ReturnType<typeof readRecordFacts>>

export async function judge(rig: Rig, end: RunEnd): Promise<Judged> {
  const facts = await readRecordFacts(rig, end)
  const { entries, changes, refusals } = facts
  const became = (from: string | null | undefined, to: string) =>
    count(changes, ({ old, new: now }) => now?.state === to && (from === undefined || (old?.state ?? null) === from))
  const answered = (code: string) => count(entries, (entry) => entry.ph === 'fail' && entry.code === code)
  const shown = {
    applied: became('submitting', 'submitted'),
    written: became(null, 'submitted'),
    'taken over': facts.takeOvers,
    refused: refusals,
    failed: became('submitting', 'failed'),
    resumed: became('failed', 'submitting'),
    superseded: became(undefined, 'superseded'),
    busy: answered('PAWL_SCOPE_BUSY'),
    'read meanwhile': readsMeanwhile(facts),
  }
  return judged(checks, facts, { changes: changes.length, shown, more: { outrun: answered('PAWL_REVISION_CONFLICT') } })
}

// ---- the model

type ModelVersion = Omit<StoredVersion, 'scope'>

interface Step {
  readonly submission: StoredSubmission
  /** False: no user ever asked for it. */
  readonly isAsked: boolean
  readonly counts: Counts
  readonly versions: readonly ModelVersion[]
  /** What a reader sees from here on. */
  readonly digest: string
  readonly live: number
}

/** Named set/place. */
type Line = { readonly scope: StoredScope; readonly name: string; readonly steps: readonly Step[] }

type Asked = ReadonlyMap<string, readonly Marked[]>

/** The committed submissions of each scope one after the other. Only their order is taken from what Pawl computed. */
function foldAll(entries: readonly Entry[], scopes: readonly StoredScope[], submissions: readonly StoredSubmission[]): Line[] {
  const asked = contents(entries)
  const committed = groupBy(submissions, ({ state, scope }) => (state === 'submitted' ? scope : undefined))
  return scopes.map((scope) => {
    const state = new Map<string, ModelVersion>()
    const inOrder = (committed.get(scope.id) ?? []).toSorted((one, other) => one.number! - other.number!)
    const steps = inOrder.map((submission) => step(state, scope, submission, asked))
    return { scope, name: `${scope.set}/${scope.place}`, steps }
  })
}

/** An upload is known by its name, which a rebase keeps; a put or append by who it is by. */
function contents(entries: readonly Entry[]): Asked {
  const asked = new Map<string, readonly Marked[]>()
  for (const { op, ph, key, mark, rows } of entries) {
    if (ph !== 'invoke') continue
    if (op === 'upload') asked.set(`upload ${key}`, rows as Marked[])
    if (op === 'append') asked.set(`append ${mark}`, rows as Marked[])
    if (op === 'put') asked.set(`put ${mark}`, [[String(key), String(mark)]])
  }
  return asked
}

function step(state: Map<string, ModelVersion>, scope: StoredScope, submission: StoredSubmission, asked: Asked): Step {
  const { origin, name, by } = submission
  const isUpload = origin === 'upload' || origin === 'rebase'
  const rows = asked.get(isUpload ? `upload ${name}` : `${origin} ${by}`)
  const versions: ModelVersion[] = []
  let unchanged = 0
  const write = (key: string, mark: string | null, status: string) => {
    const version = { key, number: submission.number!, submission: submission.id, status, mark }
    versions.push(version)
    if (mark === null) state.delete(key)
    else state.set(key, version)
  }
  // Records that a whole file leaves out are deleted by it.
  const left = new Set(rows !== undefined && isUpload && sets[scope.set].missing === 'tombstone' ? state.keys() : [])
  for (const [key, mark] of rows ?? []) {
    const current = state.get(key)
    left.delete(key)
    if (mark === null) {
      if (current !== undefined) write(key, null, 'DELETED')
    } else if (current === undefined) write(key, mark, 'CREATED')
    else if (current.mark === mark) unchanged++
    else write(key, mark, 'UPDATED')
  }
  for (const key of left) write(key, null, 'DELETED')
  const made = (status: string) => count(versions, (version) => version.status === status)
  return {
    submission,
    isAsked: rows !== undefined,
    counts: { created: made('CREATED'), updated: made('UPDATED'), unchanged, deleted: made('DELETED') },
    versions,
    digest: digestOf([...state.values()].map((current) => ({ ...current, mark: current.mark!, number: String(current.number) }))),
    live: state.size,
  }
}

/** What a reader of this number sees. */
function digestAt(line: Line | undefined, number: number): string {
  return line?.steps.findLast(({ submission }) => submission.number! <= number)?.digest ?? digestOf([])
}

// ---- checks

export const checks = {
  /** Whatever was read at any moment is a whole number of submissions: those up to one number, and nothing of another. */
  'all or nothing'({ entries, lines }, find) {
    const byPlace = new Map(lines.map((line) => [line.name, line]))
    const reads = told(entries, 'read', 'ok')
    for (const read of reads) {
      const { proc, number, asOf, rows, fold, digest } = read
      if (digest === digestAt(byPlace.get(placeOf(read)), Number(number))) continue
      const at = `${number}${asOf === undefined ? '' : ` (as of ${asOf})`}`
      find(
        `${proc} read ${placeOf(read)} at number ${at}, which no commits make: ${rows} records, by submission@number ${text(fold)}`,
      )
    }
    const gets = entries.filter(({ op, ph, status }) => op === 'get' && ph === 'ok' && status !== undefined)
    for (const get of gets) {
      const versions = byPlace.get(placeOf(get))?.steps.flatMap((each) => each.versions) ?? []
      const isIt = ({ key, number, mark, status }: ModelVersion) =>
        text([key, mark, status]) === text([get.key, get.mark, get.status]) &&
        (status === 'DELETED' || String(number) === get.number)
      if (!versions.some(isIt))
        find(`${get.proc} got ${placeOf(get)} ${text([get.key, get.mark])} in version ${get.number}, which no commit wrote`)
    }
    return reads.length + gets.length
  },

  /** A read that begins after an answer sees at least what that answer said is committed. */
  'reads go forward'({ entries }, find) {
    const answers = entries.flatMap((entry) => {
      const { op, ph, state, proc, wall } = entry
      const isWrite = (op === 'put' || op === 'append') && ph === 'ok'
      const isRead = (op === 'read' && ph === 'ok') || (op === 'ended' && state === 'submitted')
      const given = (isWrite ? entry.given : isRead ? entry.number : null) ?? null
      return given === null ? [] : [{ place: placeOf(entry), wall, number: Number(given), what: `${proc} ${op}` }]
    })
    const reads = entries.filter(({ op, ph, asOf }) => op === 'read' && ph === 'ok' && asOf === undefined)
    for (const read of reads) {
      // Strictly before: within one millisecond the order is not known.
      const late = answers.find(
        ({ place, wall, number }) => place === placeOf(read) && wall < Number(read.began) && number > Number(read.number),
      )
      if (late === undefined) continue
      find(`${read.proc} read ${placeOf(read)} at number ${read.number} after ${late.what} was answered with ${late.number}`)
    }
    return reads.length
  },

  /** Staged = created + updated + unchanged, each is what its sender's rows ask for, and the scope counts what is there. */
  'counts add up'({ lines, submissions, entries }, find) {
    for (const { scope, name, steps } of lines) {
      for (const { submission, isAsked, counts } of steps) {
        const { id, lines: staged, created, updated, unchanged, deleted } = submission
        const what = `submission ${id} of ${name}`
        if (staged !== created + updated + unchanged)
          find(`${what} staged ${staged} rows and accounts for ${created} + ${updated} + ${unchanged}`)
        const told = text({ created, updated, unchanged, deleted })
        if (!isAsked) find(`${what} was asked for by no user`)
        else if (told !== text(counts)) find(`${what} says ${told}; its rows after those before it are ${text(counts)}`)
      }
      const last = steps.at(-1)
      if (last !== undefined && scope.live !== last.live)
        find(`${name} says that ${scope.live} records are live, and there are ${last.live}`)
      const number = last?.submission.number ?? 0
      if (scope.committed !== number) find(`${name} is committed up to ${scope.committed}, and its last is ${number}`)
    }
    // The database refuses such a commit, which is the last line of defence: nothing of it is seen, and it fails every time.
    for (const { id, state, error } of submissions)
      if (state === 'failed' && error?.includes('counts_proved')) find(`submission ${id} has lost staged rows: ${error}`)
    for (const { id, listed, counts } of told(entries, 'preview', 'ok')) {
      const [created, updated] = listed as number[]
      const told = counts as Counts
      if (created !== Math.min(told.created, 500) || updated !== Math.min(told.updated, 500))
        find(`the preview of submission ${id} lists ${text(listed)} rows and counts ${text(told)}`)
    }
    return lines.reduce((sum, { steps }) => sum + steps.length, 0)
  },

  /** The versions of each record are the changes that the committed submissions made to it, each once, none between, none missing. */
  'history is the sequence'({ versions, orphans, lines }, find) {
    const textOf = ({ number, submission, status, mark }: Omit<StoredVersion, 'scope'>) =>
      `${number} ${status} ${mark ?? '-'} by ${submission}`
    const stored = groupBy(versions, ({ scope }) => scope)
    for (const { scope, name, steps } of lines) {
      for (const [number, list] of groupBy(steps, ({ submission }) => String(submission.number))) {
        const ids = list.map(({ submission }) => submission.id)
        if (list.length > 1) find(`${name} has ${list.length} commits under number ${number}: ${ids.join(', ')}`)
      }
      const made = steps.flatMap((each) => each.versions)
      const [wanted, found] = [groupBy(made, ({ key }) => key), groupBy(stored.get(scope.id) ?? [], ({ key }) => key)]
      for (const key of new Set([...wanted.keys(), ...found.keys()])) {
        const [is, should] = [(found.get(key) ?? []).map(textOf), (wanted.get(key) ?? []).map(textOf)]
        const wrong = [...Array(Math.max(is.length, should.length)).keys()].find((index) => is[index] !== should[index])
        if (wrong === undefined) continue
        find(`${name} ${key}: version ${wrong + 1} is [${is[wrong] ?? 'missing'}], and should be [${should[wrong] ?? 'nothing'}]`)
      }
    }
    for (const { submission, number } of orphans) find(`a version ${number} of submission ${submission} belongs to no record`)
    return versions.length
  },

  /**
   * A put or append that was answered yes is there once, after the very version that it named; one that was refused is not; of an unknown
   * one, all or nothing. What the caller wrote beside it is there if and only if it is.
   */
  'no lost update'({ entries, submissions, versions, lines, beside }, find) {
    const bySender = groupBy(submissions, ({ origin, by }) => `${origin} ${by}`)
    const scopes = new Map(lines.map(({ name, scope }) => [name, scope.id]))
    const byRecord = groupBy(versions, ({ scope, key }) => `${scope} ${key}`)
    const writes = entries.filter(({ op }) => op === 'put' || op === 'append')
    const answers = new Map(writes.filter(({ ph }) => ph !== 'invoke').map((entry) => [entry.mark, entry]))
    const asked = writes.filter(({ ph }) => ph === 'invoke')
    for (const invoke of asked) {
      const { op, mark, key, number, isOwn } = invoke
      const answer = answers.get(mark)
      const found = bySender.get(`${op} ${mark}`) ?? []
      const what = `${op} ${mark} to ${placeOf(invoke)} ${String(key ?? '')} was answered ${answer?.ph ?? 'by nobody'}`
      const isChange = answer?.ph !== 'ok' || answer.submission !== null
      if (found.length > 1 || (answer?.ph === 'ok' && found.length !== (isChange ? 1 : 0)))
        find(`${what}, and it is there ${found.length} times`)
      if (answer?.ph === 'fail' && found.length > 0) find(`${what} (${answer.code}), and it is there`)
      if (found.some(({ state }) => state !== 'submitted')) find(`${what}, and it is ${found[0]!.state}`)
      if (isOwn === true && isChange && beside.has(String(mark)) !== found.length > 0)
        find(`${what}, and what its caller wrote beside it did not commit with it`)
      if (op !== 'put' || found.length === 0) continue
      const history = byRecord.get(`${scopes.get(placeOf(invoke))} ${key}`) ?? []
      const place = history.findIndex(({ submission }) => submission === found[0]!.id)
      const before = history[place - 1]
      const overwritten = before === undefined || before.status === 'DELETED' ? '0' : String(before.number)
      if (place < 0) find(`${what}, and its version is not in the history`)
      else if (overwritten !== number) find(`${what}: it named version ${number}, and overwrote version ${overwritten}`)
    }
    return asked.length
  },

  /** Every version is of a committed submission, under its number; what is given up has left nothing when its slot is free. */
  'nothing left behind'({ submissions, versions, changes, empty }, find) {
    const byId = new Map(submissions.map((submission) => [submission.id, submission]))
    const strange = versions.filter(({ submission, number, scope }) => {
      const of = byId.get(submission)
      return of?.state !== 'submitted' || of.number !== number || of.scope !== scope
    })
    for (const list of groupBy(strange, ({ submission, number }) => `${submission} ${number}`).values()) {
      const { submission, number } = list[0]!
      const { state, number: own } = byId.get(submission) ?? { state: 'gone', number: '-' }
      find(`submission ${submission}, which is ${state} with number ${own}, has versions under ${number}: ${list.length}`)
    }
    const ended = changes.filter(({ new: now }) => now?.state === 'failed' || now?.state === 'superseded')
    for (const { new: now, seen, actor } of ended)
      if (Number(seen.left_over) > 0)
        find(`submission ${now!.id} was made ${now!.state} by ${actor}, and ${seen.left_over} of its versions were still there`)
    for (const { key, scope } of empty) find(`record ${key} of scope ${scope} has no version`)
    return versions.length + ended.length
  },

  /** Chunks are written, and taken back, by the holder of the job; what has no holder is ended by any process, and only purged. */
  'written by its holder'({ submissions, written }, find) {
    const origins = new Map(submissions.map(({ id, origin }) => [id, origin]))
    const rowsOf = ({ old, new: now }: (typeof written)[0]) => (now ?? old)!
    const chunks = written.filter((change) => !['put', 'append'].includes(origins.get(rowsOf(change).submission) ?? ''))
    for (const change of chunks) {
      const { actor, proc, seen } = change
      const { submission, number, rows } = rowsOf(change)
      const isRunning = seen.job_state === 'running'
      const verb = change.new === null ? 'purged' : 'wrote'
      if ((proc === seen.holder && isRunning) || (verb === 'purged' && !isRunning)) continue
      const held = `its job was ${seen.job_state ?? 'gone'}, held by ${seen.holder ?? 'nobody'}`
      find(`${actor} ${verb} ${rows} versions of submission ${submission} under ${number}; ${held}`)
    }
    return chunks.length
  },

  /** One event for each commit and each failure and none for anything else, in the order of the commits; one per changed record where that is asked for. */
  'one event each'({ events, lines, changes }, find) {
    const committed = events.filter(({ type }) => type === 'submission.committed')
    const bySubmission = groupBy(committed, ({ submission }) => submission)
    const perRecord = groupBy(events, ({ type, submission }) => (type.startsWith('record.') ? submission : undefined))
    const numbers = ({ number, created, updated, unchanged, deleted }: Counts & { number: number | null }) =>
      text([number, created, updated, unchanged, deleted])
    const known = new Set<string>()
    for (const { scope, name, steps } of lines) {
      for (const { submission, versions } of steps) {
        const { id } = submission
        known.add(id)
        const found = bySubmission.get(id) ?? []
        if (found.length !== 1) find(`submission ${id} is committed and has ${found.length} events`)
        const wrong = found.find((event) => numbers(event) !== numbers(submission))
        if (wrong !== undefined) find(`the event of submission ${id} says ${text(wrong)}`)
        const [wanted, told] = [scope.set === 'whole' ? versions.length : 0, perRecord.get(id)?.length ?? 0]
        if (told !== wanted) find(`submission ${id} has ${told} events of single records for ${wanted} changes`)
      }
      const ids = new Set(steps.map(({ submission }) => submission.id))
      const order = committed.filter(({ submission }) => ids.has(submission)).map(({ number }) => number)
      if (order.some((number, index) => index > 0 && number < order[index - 1]!))
        find(`the events of ${name} are not in the order of its commits: ${order.join(', ')}`)
    }
    for (const id of new Set([...bySubmission.keys(), ...perRecord.keys()]))
      if (!known.has(id)) find(`there is an event of submission ${id}, which is not committed`)
    const failures = events.filter(({ type }) => type === 'submission.failed').map(({ submission }) => submission)
    const failed = changes.flatMap(({ new: now }) => (now?.state === 'failed' ? [now.id] : []))
    for (const id of new Set([...failures, ...failed])) {
      const [told, times] = [failures, failed].map((list) => count(list, (each) => each === id))
      if (told !== times) find(`submission ${id} failed ${times} times and has ${told} events of that`)
    }
    return events.length
  },

  'one submitting per scope'({ changes }, find) {
    const holders = new Map<string, string>()
    let looked = 0
    for (const { old, new: now, actor } of changes) {
      const { id, scope_id: scope } = (now ?? old)!
      if (old?.state === 'submitting' && holders.get(scope) === id) holders.delete(scope)
      const isAtOnce = old?.state === 'validated' && now?.state === 'submitted'
      if (now?.state !== 'submitting' && !isAtOnce) continue
      looked++
      const holder = holders.get(scope)
      if (holder !== undefined)
        find(`submission ${id} took the slot of scope ${scope} by ${actor} while submission ${holder} had it`)
      if (!isAtOnce) holders.set(scope, id)
    }
    return looked
  },

  /** Changes follow the diagram and count the revision up by one; each submit that was answered yes is one change, of the revision it named. */
  'states and revisions'({ changes, entries }, find) {
    for (const { old, new: now, actor } of changes) {
      if (now === null) continue
      const what = `submission ${now.id}: ${old?.state ?? 'nothing'} -> ${now.state} by ${actor}`
      if (!legal[old?.state ?? 'none']?.includes(now.state)) find(`${what} is not a legal change`)
      if (old !== null && Number(now.revision) !== Number(old.revision) + 1)
        find(`${what} took its revision from ${old.revision} to ${now.revision}`)
    }
    const taken = groupBy(changes, ({ old, new: now }) => {
      const isTaken = now?.state === 'submitting' || (old?.state === 'validated' && now?.state === 'submitted')
      return isTaken ? `${old?.state} ${now.id}` : undefined
    })
    const takes = entries.filter(({ op }) => op === 'submit' || op === 'resume')
    for (const list of groupBy(takes, ({ op, id }) => `${op} ${id}`).values()) {
      const { op, id } = list[0]!
      const found = taken.get(`${op === 'submit' ? 'validated' : 'failed'} ${id}`) ?? []
      const times = (ph: string) => count(list, (entry) => entry.ph === ph)
      const unknown = times('invoke') - times('ok') - times('fail')
      if (found.length < times('ok') || found.length > times('ok') + unknown)
        find(
          `submission ${id}: ${op} was answered yes ${times('ok')} times, not at all ${unknown}, and happened ${found.length} times`,
        )
      for (const { named, revision, number } of list.filter(({ ph }) => ph === 'ok')) {
        const change = found.find(({ new: now }) => now!.revision === String(revision))
        const what = `submission ${id}: ${op} of revision ${named}`
        if (change === undefined) find(`${what} was answered with revision ${revision}, which it never had`)
        else if (change.old!.revision !== String(named)) find(`${what} was done, and it was at revision ${change.old!.revision}`)
        else if (change.seen.number !== number) find(`${what} was answered with number ${number}, and took ${change.seen.number}`)
      }
    }
    return changes.length + takes.length
  },

  /** What is applied was compared with the very state that it is applied to: a person agreed to that preview and to no other. */
  'baseline current'({ changes }, find) {
    const taken = changes.filter(({ new: now }) => now?.state === 'submitting')
    for (const { new: now, seen, actor } of taken)
      if (seen.baseline !== seen.scope_revision)
        find(
          `submission ${now!.id} was compared with revision ${seen.baseline} and submitted at ${seen.scope_revision} by ${actor}`,
        )
    return taken.length
  },

  'all at rest'({ submissions, liveJobs, staged, isDrained, notStopped }, find) {
    const stuck = submissions.filter(({ state }) => state === 'submitting')
    for (const { id, number } of stuck) find(`submission ${id} is still submitting under number ${number} after healing`)
    const [job] = liveJobs
    if (job !== undefined)
      find(`${liveJobs.length} apply job(s) did not end after healing: ${job.id} is ${job.state} (${job.error ?? ''})`)
    if (staged > 0) find(`${staged} staged rows of committed submissions were not cleared`)
    for (const { id, state, error } of submissions)
      if (state === 'failed' && error === null) find(`submission ${id} is failed without a reason`)
    if (!isDrained && stuck.length + liveJobs.length + staged === 0) find('not everything came to rest in time after healing')
    for (const slot of notStopped) find(`${slot} did not stop in order after healing`)
    return submissions.length
  },
} satisfies Record<string, Check<Facts>>

export type CheckName = keyof typeof checks

const placeOf = ({ set, place }: Entry): string => `${set}/${place}`
const text = JSON.stringify

/** Reads during which some submission of the place was being applied. */
function readsMeanwhile({ entries, changes, lines }: Facts): number {
  const names = new Map(lines.map(({ scope, name }) => [scope.id, name]))
  const spans = changes.flatMap(({ at, new: now }, index) => {
    if (now?.state !== 'submitting') return []
    const end = changes.slice(index + 1).find((change) => change.new?.id === now.id)
    return [{ place: names.get(now.scope_id), from: at, to: end?.at ?? Number.POSITIVE_INFINITY }]
  })
  const reads = told(entries, 'read', 'ok')
  return count(reads, (read) =>
    spans.some(({ place, from, to }) => place === placeOf(read) && from < read.wall && Number(read.began) < to),
  )
}

const legal: Readonly<Record<string, readonly string[]>> = {
  none: ['uploading', 'submitted'],
  uploading: ['uploading', 'validating', 'invalid', 'upload-failed'],
  'upload-failed': ['uploading'],
  validating: ['uploading', 'validated', 'invalid', 'upload-failed'],
  // Submitted at once: it changes nothing.
  validated: ['submitting', 'submitted', 'superseded'],
  submitting: ['submitted', 'failed'],
  failed: ['submitting', 'superseded'],
}

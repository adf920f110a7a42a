// The stories of records, and the planted bugs that show in them. Without its bug each story is clean.

import { setTimeout as sleep } from 'node:timers/promises'
import { Jobs, RecordScope, Records, type Submission } from 'pawl'
import { bind } from '../../packages/pawl/src/db/statement.ts'
import { Transaction } from '../../packages/pawl/src/db/transaction.ts'
import { Call } from '../../packages/pawl/src/jobs/call.ts'
import { replaces, rewrites, sendOutside, swap } from '../canary.ts'
import { readHistory } from '../history.ts'
import type { ChildOptions } from '../process.ts'
import type { Story } from '../scenario.ts'
import type { CheckName } from './checks.ts'
import { type Actor, chunkRows, isDoomed, keyOf, type Marked, type Place, places, type RecordsTraffic } from './traffic.ts'

const here: Place = places[0]!
/** Four chunks. */
const rowsMax = 4 * chunkRows

export const stories: Readonly<Record<string, Story<RecordsTraffic, CheckName>>> = {
  undisturbed: {
    tells: 'Two workers apply files to every place, with puts and appends between them; nothing goes wrong.',
    async play(rig, { user: actor }) {
      await Promise.all([rig.startProcess('w1'), rig.startProcess('w2')])
      for (const [index, at] of places.entries()) {
        await applied(actor, at, `first ${index}`, rows(`first ${index}`))
        await actor.read(at, { pageRows: 17 })
        await actor.put(at, keyOf(3), `put ${index}`, (await actor.numberOf(at, keyOf(3)))!, index === 0)
        const mark = `append ${index}`
        await actor.append(at, mark, [
          [keyOf(4), mark],
          [keyOf(5), null],
          [keyOf(99), mark],
        ] as const)
        await actor.read(at)
        await applied(actor, at, `second ${index}`, rows(`second ${index}`, 40))
        await actor.read(at)
        await actor.read(at, { asOf: '2' })
      }
    },
    shows: {
      'read-lags': rewrites('reads go forward', { 'record-page': swap('s.committed) as number', 's.committed - 1) as number') }),
    },
  },
  'applier killed': {
    tells: 'A worker is killed after its second chunk, and another goes on after it.',
    async play(rig, { user: actor }) {
      await submitted(actor, here, 'file', rows('file'))
      await rig.strike('w1', { probe: 'records.apply.chunk', hit: 2, kind: 'kill' })
      await rig.startProcess('w2')
      await actor.read(here)
    },
    shows: { 'recovery-through-the-gate': { caughtBy: 'all at rest', inProcess: recoverThroughGate } },
  },
  'zombie applier': {
    tells: 'A worker is stopped before a chunk, another takes its job over and stands before the same one, then it wakes up.',
    async play(rig, { user: actor }) {
      await submitted(actor, here, 'file', rows('file'))
      await rig.strike('w1', { probe: 'records.apply.before', hit: 2, kind: 'pause' })
      // Blocked and not stopped: its lease goes on.
      await rig.startProcess('w2', { faults: [{ probe: 'records.apply.before', hit: 1, kind: 'block', ms: 4000 }] })
      await rig.until(() => rig.wrote('refused') > 0, 8000)
    },
    shows: { 'apply-without-fence': replaces('written by its holder', Call.prototype, { guard: () => Promise.resolve() }) },
  },
  'read between chunks': {
    tells: 'A worker stands before the last chunk of a submission while a user reads.',
    async play(rig, { user: actor }) {
      await actor.append(here, 'before', rows('before', 10))
      await submitted(actor, here, 'file', rows('file'))
      await rig.strike('w1', { probe: 'records.apply.before', hit: 4, kind: 'block', ms: 2500 })
      for (let time = 0; time < 5; time++) {
        await actor.read(here)
        await sleep(100)
      }
    },
    shows: {
      'commit-before-last-chunk': rewrites('all or nothing', {
        'apply-chunk': commitEarly,
        commit: swap('and s.committed < e.number', ''),
      }),
      'reader-sees-what-is-written': rewrites('all or nothing', {
        'record-page': swap('and w.number <= (select s.number from scope s)', ''),
      }),
    },
  },
  'racing puts': {
    tells: 'Six people put the same record at once, each on top of the same version.',
    async play(_rig, { user: actor }) {
      await actor.append(here, 'before', rows('before', 3))
      for (let round = 0; round < 8; round++) {
        const number = (await actor.numberOf(here, keyOf(1)))!
        const people = [0, 1, 2, 3, 4, 5]
        await Promise.all(people.map((one) => actor.put(here, keyOf(1), `put ${round} ${one}`, number, one === 0)))
      }
      await actor.read(here)
    },
    shows: {
      // The lock and the key stand for each other: with either of them left, the other cannot be missed.
      'append-without-unique-key': {
        caughtBy: 'history is the sequence',
        schema: ['alter table pawl.record_version drop constraint record_version_pkey', 'drop index pawl.submission_number'],
        statements: { 'scope-lock': swap('for no key update', '') },
      },
      'put-without-compare': { caughtBy: 'no lost update', inProcess: putWithoutCompare, inRig: putWithoutCompare },
    },
  },
  'same file after a failure': {
    tells: 'A file is uploaded while the same one with a refused row is half applied; that one fails, and then it is submitted.',
    async play(rig, { user: actor }) {
      await actor.append(here, 'before', rows('before'))
      const first = await submitted(actor, here, 'refused', doomedRows('mark'))
      await rig.strike('w1', { probe: 'records.apply.chunk', hit: 2, kind: 'block', ms: 2500 })
      const second = (await actor.upload({ key: 'again', at: here, rows: doomedRows('mark').slice(0, -1) }))!
      await actor.ended(first.id)
      await actor.submit(second)
      await actor.ended(second.id)
      await actor.read(here)
    },
    shows: {
      'delta-against-last-written': rewrites('counts add up', {
        lookup: swap(/r\.id, (\$\d+::bigint)\)/, 'r.id, greatest($1, 9223372036854775807))'),
      }),
    },
  },
  'failed twice': {
    tells: 'A submission fails, is resumed and fails again; a person resumes it who saw it when it had failed once.',
    async play(rig, traffic) {
      const { user: actor } = traffic
      await rig.startProcess('w1')
      const { id } = await submitted(actor, here, 'refused', doomedRows('mark'))
      await actor.ended(id)
      const once = await actor.pawl.records.get(id)
      for (let time = 0; time < 2; time++) {
        await actor.resume(once)
        await actor.ended(id)
      }
      await traffic.mend(id)
      await actor.resume(await actor.pawl.records.get(id))
      await actor.ended(id)
      await actor.read(here)
    },
    shows: {
      'status-without-revision': { caughtBy: 'states and revisions', inProcess: forgetRevisions, inRig: forgetRevisions },
    },
  },
  'after a failure': {
    tells: 'A submission is given up after three chunks, a user puts a record, and a user reads.',
    async play(rig, { user: actor }) {
      await actor.append(here, 'before', rows('before', 10))
      await rig.startProcess('w1')
      const { id } = await submitted(actor, here, 'refused', doomedRows('mark'))
      await actor.ended(id)
      await actor.put(here, keyOf(1), 'put', (await actor.numberOf(here, keyOf(1)))!)
      await actor.read(here)
    },
    shows: {
      'slot-freed-before-purge': {
        caughtBy: 'nothing left behind',
        // That nothing is left is proved by what was taken back: the bug takes the proof for granted.
        schema: ['alter table pawl.submission drop constraint failed_is_purged'],
        statements: { 'purge-chunk': purgeLater, 'submission-fail': swap(/and u\.applied_created \+ .* = 0/, '') },
      },
    },
  },
  'killed in the commit': {
    tells: 'A worker is killed when everything of a commit is written and nothing is committed.',
    async play(rig, { user: actor }) {
      const { id } = await submitted(actor, here, 'file', rows('file'))
      await rig.strike('w1', { probe: 'records.commit.written', hit: 1, kind: 'kill' })
      await actor.read(here)
      await actor.ended(id)
      await actor.read(here)
    },
    shows: { 'event-before-commit': { caughtBy: 'one event each', inProcess: eventBeforeCommit } },
  },
  'two submitters': {
    tells: 'Two files for one place are submitted at once.',
    async play(rig, { user: actor }) {
      const upload = async (key: string, index: number) => (await actor.upload({ key, at: here, rows: rows(key, 20 + index) }))!
      const uploads = await Promise.all(['one', 'two'].map(upload))
      await Promise.all(uploads.map(actor.submit))
      await rig.startProcess('w1')
      for (const { id } of uploads) await actor.ended(id, 8000)
    },
    shows: {
      'slot-not-unique': {
        caughtBy: 'one submitting per scope',
        schema: ['drop index pawl.submission_slot'],
        statements: { slot: swap("and s.state = 'submitting'", "and s.state = 'nothing'") },
      },
    },
  },
  'started over twice': {
    tells: 'A user who starts an upload over is stopped before the old rows are cleared; another starts it over and submits.',
    async play(rig, { user: actor }) {
      const faults = [{ probe: 'records.restart.committed', hit: 1, kind: 'pause' }] as const
      await rig.startProcess('c1', { role: 'client', how: 'restart 1', faults })
      await rig.until(() => rig.wrote('fault') > 0)
      const asked = readHistory(rig.dir, 'c1').find(({ op, restart }) => op === 'upload' && restart !== undefined)!
      const at = { set: String(asked.set), place: String(asked.place) } as Place
      const sound = (asked.rows as Marked[]).filter(([, mark]) => !isDoomed(mark))
      const upload = (await actor.upload({ key: String(asked.key), at, rows: sound, restart: String(asked.restart) }))!
      await actor.submit(upload)
      const isLost = () => readHistory(rig.dir, 'c1').some(({ op, code }) => op === 'upload' && code === 'PAWL_LEASE_LOST')
      await rig.until(isLost)
      await rig.stopProcess('c1')
      await rig.startProcess('w1')
      await actor.ended(upload.id)
      await actor.read(at)
    },
    shows: {
      'clear-without-fence': rewrites('counts add up', {
        'stage-clear': swap(/u\.fence = (\S+)[^)]*u\.lines = 0/, '$1 is not null'),
      }),
    },
  },
  'moved baseline': {
    tells: 'A record is put between the upload of a file and its submit; the file is rebased and submitted then.',
    async play(rig, { user: actor }) {
      await actor.append(here, 'before', rows('before', 10))
      const upload = (await actor.upload({ key: 'file', at: here, rows: rows('file', 20) }))!
      await actor.put(here, keyOf(1), 'put', (await actor.numberOf(here, keyOf(1)))!)
      await actor.submit(upload)
      const rebased = await actor.rebase(upload.id)
      if (rebased !== undefined) await actor.submit(rebased)
      await rig.startProcess('w1')
      await actor.ended((rebased ?? upload).id, 8000)
      await actor.read(here)
    },
    shows: {
      'baseline-not-checked': rewrites('baseline current', {
        'submission-lock': swap(
          'u.baseline::text as baseline',
          '(select s.revision from pawl.record_scope s where s.tenant = u.tenant and s.id = u.scope_id)::text as baseline',
        ),
        submit: swap('and s.revision = u.baseline', ''),
      }),
    },
  },
}

function rows(mark: string, length = rowsMax): Marked[] {
  return Array.from({ length }, (_, index) => [keyOf(index), mark])
}

/** The last row is refused for good. */
function doomedRows(mark: string): Marked[] {
  return [...rows(mark, rowsMax - 1), [keyOf(rowsMax - 1), `${mark}!`]]
}

async function submitted(actor: Actor, at: Place, key: string, file: readonly Marked[]): Promise<Submission> {
  const upload = (await actor.upload({ key, at, rows: file }))!
  await actor.submit(upload)
  return upload
}

async function applied(actor: Actor, at: Place, key: string, file: readonly Marked[]): Promise<void> {
  const { id } = await submitted(actor, at, key, file)
  await actor.ended(id)
}

// ---- bugs that are more than one rewrite

/** The scope's number moves with the last chunk but one. */
function commitEarly(text: string): string {
  const parameter = (before: RegExp) => {
    const found = new RegExp(`${before.source}(\\$\\d+::[a-z]+)`).exec(text)
    if (found === null) throw new Error(`A canary found no parameter after ${before.source} in\n${text}`)
    return found[1]!
  }
  const [tenant, id] = [parameter(/u\.tenant = /), parameter(/u\.id = /)]
  const [number, upto] = [parameter(/u\.number = /), parameter(/set applied_line = /)]
  const scope = parameter(/insert into pawl\.record \([^)]*\)\s+select [^,]+, /)
  return swap(
    'records as (',
    `early as (
      update pawl.record_scope s set committed = ${number}
      where s.tenant = ${tenant} and s.id = ${scope} and s.committed < ${number}
        and (
          select count(*) from pawl.submission_row r
          where r.tenant = ${tenant} and r.submission = ${id} and r.line > ${upto} and r.kind in ('created', 'updated', 'deleted')
        ) between 1 and ${chunkRows}
    ),
    records as (`.replaceAll('$', '$$$$'),
  )(text)
}

/** It answers that everything is purged, and leaves that for later. */
function purgeLater(text: string): string {
  return swap('where v.ctid = ', 'where false and v.ctid = ')(swap('where r.ctid = ', 'where false and r.ctid = ')(text))
}

function forgetRevisions(): void {
  const { submit, resume } = Records.prototype
  Records.prototype.submit = function (this: Records, id, { revision: _ignored, ...options } = {}) {
    return submit.call(this, id, options)
  }
  Records.prototype.resume = function (this: Records, id, { revision: _ignored, ...options } = {}) {
    return resume.call(this, id, options)
  }
}

function putWithoutCompare(): void {
  const { put } = RecordScope.prototype
  RecordScope.prototype.put = function (this: RecordScope, row, { number: _ignored, ...options } = {}) {
    return put.call(this, row, options)
  }
}

/** The event is sent on a connection of its own, and is there whatever becomes of the commit. */
function eventBeforeCommit({ url }: ChildOptions): void {
  const run = Transaction.prototype.run
  Transaction.prototype.run = async function (this: Transaction, sent, values = {}) {
    if (sent.name !== 'submission-event') return run.call(this, sent, values)
    return (await sendOutside(url, sent.text, bind(sent, values))).rows
  } as typeof run
}

interface Applying {
  run(job: { readonly attempt: number; readonly payload: { readonly submission: string } }, context: unknown): Promise<unknown>
}

/** A worker that takes a submission over submits it first, as if it were validated; it is submitting, so that is refused, every time. */
function recoverThroughGate(): void {
  const seen: Records[] = []
  const defineSet = Records.prototype.define
  Records.prototype.define = function (this: Records, ...args: Parameters<typeof defineSet>) {
    seen.push(this)
    return defineSet.apply(this, args)
  } as typeof defineSet
  const define = Jobs.prototype.define as (this: Jobs, kind: string, options: Applying) => unknown
  Jobs.prototype.define = function (this: Jobs, kind: string, options: Applying) {
    if (kind !== 'pawl.records.apply') return define.call(this, kind, options)
    const run: Applying['run'] = async (job, context) => {
      if (job.attempt > 1) await seen.at(-1)!.submit(job.payload.submission)
      return options.run(job, context)
    }
    return define.call(this, kind, { ...options, run })
  } as never
}

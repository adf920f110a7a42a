// The planted bugs of records.

import { type Canary, swap } from '../canary.ts'
import type { CheckName } from './checks.ts'
import { eventBeforeCommit, forgetRevisions, guardNothing, putWithoutCompare, recoverThroughGate } from './patches.ts'
import { chunkRows } from './sets.ts'

/** The scope's number moves with the last chunk but one. */
function commitEarly(text: string): string {
  const parameter = (before: RegExp) => {
    const found = new RegExp(`${before.source}(\\$\\d+::[a-z]+)`).exec(text)
    if (found === null) throw new Error(`A canary found no parameter behind ${before.source} in\n${text}`)
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
          where r.tenant = ${tenant} and r.submission = ${id} and r.line > ${upto} and r.kind in ('C', 'U', 'D')
        ) between 1 and ${chunkRows}
    ),
    records as (`.replaceAll('$', '$$$$'),
  )(text)
}

/** It says that everything is purged, and leaves that for later. */
const purgeLater = (text: string): string =>
  swap('where v.ctid = ', 'where false and v.ctid = ')(swap('where r.ctid = ', 'where false and r.ctid = ')(text))

export const canaries: readonly Canary<CheckName>[] = [
  {
    name: 'append-without-unique-key',
    bug: 'Nothing makes a version unique: neither its key, nor a lock under which numbers are taken.',
    proves: 'Two writes that took one number are seen, although both were answered yes.',
    caughtBy: 'history is the sequence',
    story: 'racing puts',
    schema: ['alter table pawl.record_version drop constraint record_version_pkey', 'drop index pawl.submission_number'],
    statements: { 'scope-lock': swap('for no key update', '') },
  },
  {
    name: 'status-without-revision',
    bug: 'A submit compares the state and not the revision that its caller saw.',
    proves: 'A submission that is resumed by somebody who saw it before it failed a second time is seen.',
    caughtBy: 'states and revisions',
    story: 'failed twice',
    inProcess: forgetRevisions,
    inRig: forgetRevisions,
  },
  {
    name: 'apply-without-fence',
    bug: 'A chunk is written without a look at who holds the job.',
    proves: 'A chunk of somebody whose lease has ended is seen, although the rows are right.',
    caughtBy: 'written by its holder',
    story: 'zombie applier',
    inProcess: guardNothing,
  },
  {
    name: 'commit-before-last-chunk',
    bug: "The scope's number moves when the last chunk is still to be written.",
    proves: 'A reader who sees a part of a submission is noticed, although all of it is there in the end.',
    caughtBy: 'all or nothing',
    story: 'read between chunks',
    statements: { 'apply-chunk': commitEarly, commit: swap('and s.committed < e.number', '') },
  },
  {
    name: 'reader-sees-what-is-written',
    bug: 'A page takes the latest version that is written, committed or not.',
    proves: 'A look at a submission before its commit is seen, although it commits afterwards.',
    caughtBy: 'all or nothing',
    story: 'read between chunks',
    statements: { 'record-page': swap('and w.number <= (select s.number from scope s)', '') },
  },
  {
    name: 'delta-against-last-written',
    bug: 'An upload is compared with what was last written instead of what is committed.',
    proves: 'Rows that were left out because a submission that failed had written them are seen.',
    caughtBy: 'counts add up',
    story: 'same file after a failure',
    statements: { lookup: swap(/w\.number <= (\$\d+::bigint)/, '$1 is not null') },
  },
  {
    name: 'slot-freed-before-purge',
    bug: 'A submission that is given up frees its slot, and what it wrote is left for later.',
    proves: 'Versions that the next commit would show are seen at the moment when the slot is free.',
    caughtBy: 'nothing left behind',
    story: 'after a failure',
    // That nothing is left is proved by what was taken back: the bug takes the proof for granted.
    schema: ['alter table pawl.submission drop constraint failed_is_purged'],
    statements: { 'purge-chunk': purgeLater, 'submission-fail': swap(/and u\.applied_created \+ .* = 0/, '') },
  },
  {
    name: 'clear-without-fence',
    bug: 'Who has started an upload over clears its rows without a look whether it still is theirs.',
    proves: 'Rows that a later upload has staged, and that vanish before they are applied, are noticed.',
    caughtBy: 'counts add up',
    story: 'started over twice',
    statements: { 'stage-clear': swap(/else u\.fence = .*/, 'else true') },
  },
  {
    name: 'recovery-through-the-gate',
    bug: 'Who takes a submission over begins with the transition from validated, which one that is submitting cannot make.',
    proves: 'A submission that never goes on is seen.',
    caughtBy: 'all at rest',
    story: 'applier killed',
    inProcess: recoverThroughGate,
  },
  {
    name: 'put-without-compare',
    bug: 'A put does not look at the version that its caller saw.',
    proves: 'An update that was overwritten unseen is noticed, although both were answered yes.',
    caughtBy: 'no lost update',
    story: 'racing puts',
    inProcess: putWithoutCompare,
    inRig: putWithoutCompare,
  },
  {
    name: 'event-before-commit',
    bug: 'The event of a submission is sent before its commit, on a connection of its own.',
    proves: 'An event of a commit that did not happen then, and one too many when it did, is seen.',
    caughtBy: 'one event each',
    story: 'killed in the commit',
    inProcess: eventBeforeCommit,
  },
  {
    name: 'slot-not-unique',
    bug: 'Two submissions of one scope may be submitting at once.',
    proves: 'A second holder of a slot is seen, whether or not the two meet.',
    caughtBy: 'one submitting per scope',
    story: 'two submitters',
    schema: ['drop index pawl.submission_slot'],
    statements: { slot: swap("and s.state = 'submitting'", "and s.state = 'nothing'") },
  },
  {
    name: 'baseline-not-checked',
    bug: 'A submission is applied although its scope has moved since it was compared with it.',
    proves: 'A preview that is not what is applied is seen.',
    caughtBy: 'baseline current',
    story: 'moved baseline',
    statements: {
      'submission-lock': swap(
        'u.baseline::text as baseline',
        '(select s.revision from pawl.record_scope s where s.tenant = u.tenant and s.id = u.scope_id)::text as baseline',
      ),
      submit: swap('and s.revision = u.baseline', ''),
    },
  },
  {
    name: 'read-lags',
    bug: 'A reader sees the commit before the last one.',
    proves: 'A read that is a whole number of submissions, but not of enough of them, is seen.',
    caughtBy: 'reads go forward',
    story: 'undisturbed',
    statements: { 'record-page': swap('s.committed) as number', 's.committed - 1) as number') },
  },
]

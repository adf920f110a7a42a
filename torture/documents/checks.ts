// The checks of documents. They read every change of documents, references and cursors, the log, and the answers of writers.

import { isDeepStrictEqual } from 'node:util'
import { type Check, count, groupBy, type Judged, judged, type RunEnd, readFacts, told } from '../checks.ts'
import type { Entry } from '../history.ts'
import { changesOf } from '../recorder.ts'
import type { Rig } from '../rig.ts'
import { type Body, scalarsOf, type Told, type TypeName, User, type Way, type Write } from './traffic.ts'

// ---- facts

type Key = Readonly<Record<string, unknown>>
type Version = Record<'id' | 'uuid', string> & { type: TypeName; revision: number; receipt: bigint; key: Key; body: Body }
/** A change of a document with the values that its columns have. */
interface Step {
  readonly xid: string
  readonly uuid: string
  readonly old: Version | null
  readonly new: Version | null
}
type Event = { uuid: string; type: string; xid: string; payload: Record<string, unknown> }
type Call = { ph: Entry['ph']; way: Way; writes: (Write & { mark?: string })[]; told: Told[] }

type DocumentColumn = 'id' | 'uuid' | 'type' | 'revision' | 'receipt' | 'keys' | 'body'

function versionOf(values: Record<DocumentColumn, string> | null): Version | null {
  if (values === null) return null
  const { id, uuid, type, revision, receipt, keys, body } = values
  const key = (JSON.parse(keys) as Record<string, Key>)[type]!
  return {
    id,
    uuid,
    type: type as TypeName,
    revision: Number(revision),
    receipt: BigInt(receipt),
    key,
    body: JSON.parse(body) as Body,
  }
}

async function readDocumentFacts(rig: Rig, end: RunEnd) {
  const faults = await verifyAll(rig)
  return readFacts(rig, end, async (rows) => {
    const changes = (await changesOf<DocumentColumn>(rows, 'document')).map(({ xid, old, new: now }): Step => {
      return { xid, uuid: (now ?? old)!.uuid, old: versionOf(old), new: versionOf(now) }
    })
    const events = await rows<Event>('select aggregateid as uuid, type, xid::text, payload from pawl.event order by seq')
    const created = new Set(events.filter(({ type }) => type === 'document.created').map(({ uuid }) => uuid))
    return {
      faults,
      events,
      // A document that did not get its key is gone when its statement ends.
      steps: changes.filter(({ uuid }) => created.has(uuid)),
      refChanges: await changesOf<'from_id' | 'path' | 'to_id'>(rows, 'document_ref'),
      takes: await changesOf<'holder'>(rows, 'cursor'),
      documents: await rows<{ id: string; uuid: string; type: TypeName; key: Key; body: Body }>(
        'select id::text, uuid::text, type, keys -> type as key, body from pawl.document order by id',
      ),
      keys: await rows<{ id: string; parts: Key; refs: string[] }>(
        'select document_id::text as id, parts, refs::text[] from pawl.document_key where alias_until is null',
      ),
      refs: await rows<{ from: string; path: string[]; to: string; inKey: boolean }>(
        'select from_id::text as from, path, to_id::text as to, in_key as "inKey" from pawl.document_ref',
      ),
      marks: await rows<{ entity: string; error: string | null }>('select entity, last_error as error from pawl.dirty'),
    }
  })
}

/** The check that is shipped. */
async function verifyAll({ database, history }: Rig): Promise<string[]> {
  const user = new User({ url: database.url!, name: 'judge', max: 1, history })
  const found: string[] = []
  try {
    for (let after = '0'; ; ) {
      const { faults, next } = await user.pawl.documents.verify({ after, limit: 500 })
      found.push(...faults.map(({ type, uuid, fault }) => `${type} ${uuid}: ${fault}`))
      if (next === null) return found
      after = next
    }
  } catch (error) {
    return [...found, String(error)]
  } finally {
    await user.close()
  }
}

type Facts = Awaited<ReturnType<typeof readDocumentFacts>>

const callsOf = (entries: readonly Entry[]): Call[] =>
  told(entries, 'write')
    .filter(({ ph }) => ph !== 'invoke')
    .map((entry) => ({ ...(entry as unknown as Call), told: (entry.told ?? []) as Told[] }))

/** Each write with what came of it. */
const writesOf = (entries: readonly Entry[]) =>
  callsOf(entries).flatMap(({ ph, way, writes, told }) =>
    writes.map((write, index) => ({ ph, way, ...write, told: told[index] ?? ({} as Told) })),
  )

export async function judge(rig: Rig, end: RunEnd): Promise<Judged> {
  const facts = await readDocumentFacts(rig, end)
  const { entries, steps, events, takes } = facts
  const writes = writesOf(entries)
  const refused = (code: string) => count(writes, ({ told }) => told.code === code)
  const cascaded = (type: string) => count(events, (event) => event.type === type && event.payload.cause === 'cascade')
  const shown = {
    created: count(steps, ({ old }) => old === null),
    unchanged: count(writes, ({ told }) => told.outcome === 'unchanged'),
    renamed: count(steps, (step) => isWrite(step) && !isDeepStrictEqual(ownOf(step.old), ownOf(step.new))),
    swapped: count(callsOf(entries), ({ ph, way }) => ph === 'ok' && way === 'all'),
    deleted: count(steps, ({ new: now }) => now === null),
    'bodies refreshed': cascaded('document.updated'),
    'keys refreshed': cascaded('document.key-updated'),
    stale: refused('PAWL_STALE_WRITE'),
    taken: refused('PAWL_KEY_TAKEN'),
    referenced: refused('PAWL_REFERENCED'),
    'other etag': refused('PAWL_PRECONDITION_FAILED'),
    'taken over': count(takes, ({ old, new: now }) => !!old?.holder && !!now?.holder && old.holder !== now.holder),
  }
  const more = { unified: refused('PAWL_UNIFIED'), unknown: count(writes, ({ ph }) => ph === 'info') }
  return judged(checks, facts, { changes: steps.length, shown, more })
}

// ---- checks

/** A write, in contrast to a refresh. */
const isWrite = ({ old, new: now }: Step): boolean => old !== null && now !== null && old.revision !== now.revision
const ownOf = (version: Version | null) => version && scalarsOf(version.type).map((name) => version.body[name])
const nameOf = ({ type, uuid }: { readonly type: string; readonly uuid: string }): string => `${type} ${uuid}`
const bodyAt = (body: unknown, path: readonly string[]): unknown =>
  path.reduce((value, name) => (value as Record<string, unknown> | undefined)?.[name], body)

/** The key that a document has now, from the parts of all that it is made of. */
function currentKeys({ keys }: Facts): (id: string) => Key {
  const rows = new Map(keys.map((row) => [row.id, row]))
  const of = (id: string): Key => {
    const row = rows.get(id)
    return row === undefined ? {} : Object.assign({}, row.parts, ...row.refs.map(of))
  }
  return of
}

/** The event that a change must have: none if only its receipt was raised. */
function eventOf({ old, new: now }: Step): readonly unknown[] | undefined {
  if (old === null) return ['document.created', 1, now!.key]
  if (now === null) return ['document.deleted', null, old.key]
  if (!isDeepStrictEqual(old.key, now.key)) return ['document.key-updated', now.revision, old.key, now.key]
  return old.revision === now.revision && isDeepStrictEqual(old.body, now.body) ? undefined : ['document.updated', now.revision]
}

export const checks = {
  /** An answered write is there, a refused one is not, an unknown one whole or not at all; and no later refresh takes it away. */
  'writes hold'({ entries, steps }, find) {
    const written = groupBy(steps, (step) => (step.old === null || isWrite(step) ? step.new!.body.mark : undefined))
    const deleted = new Set(steps.filter(({ new: now }) => now === null).map(({ uuid }) => uuid))
    const isThere = ({ mark, uuid, verb }: Write & { mark?: string }) =>
      verb === 'delete' ? deleted.has(uuid!) : written.has(mark!)
    const calls = callsOf(entries)
    const asked = groupBy(
      calls.flatMap(({ writes }) => writes),
      ({ mark }) => mark,
    )
    for (const { ph, writes, told } of calls) {
      // A body that was sent twice may be there by the other write, a deleted document by another delete.
      const own = writes.filter(({ verb, mark }) => verb !== 'delete' && asked.get(mark!)!.length === 1)
      const there = own.filter(isThere)
      if (ph === 'fail' && there.length > 0) find(`write ${there[0]!.mark} was refused, and is there`)
      if (ph === 'info' && there.length > 0 && there.length < own.length)
        find(`of one transaction write ${there[0]!.mark} is there, and others are not`)
      if (ph !== 'ok') continue
      for (const [index, write] of writes.entries()) {
        const { code, uuid = write.uuid, outcome, etag = '' } = told[index]!
        const what = `${write.verb} ${write.mark ?? ''} of ${write.type} ${uuid}`
        const isIt = ({ new: now }: Step) =>
          now!.uuid === uuid && (outcome === 'unchanged' || now!.revision === Number.parseInt(etag, 10))
        if (code !== undefined && own.includes(write) && isThere(write)) find(`${what} was refused (${code}), and is there`)
        if (code === undefined && (write.verb === 'delete' ? !isThere(write) : !written.get(write.mark!)?.some(isIt)))
          find(`${what} was answered ${outcome ?? 'deleted'} ${etag}, and is not there`)
      }
    }
    for (const { uuid, old, new: now } of steps) {
      if (now !== null && old?.revision === now.revision && old.body.mark !== now.body.mark)
        find(`${nameOf(now)}: a refresh replaced write ${old.body.mark} by ${now.body.mark}`)
      if (now !== null && now.revision !== (old?.revision ?? 0) + 1 && now.revision !== old?.revision)
        find(`${uuid} went from revision ${old?.revision} to ${now.revision}`)
    }
    return calls.length + steps.length
  },

  /** With `ifMatch` a write comes directly after the revision that was read. */
  'etags hold'({ entries }, find) {
    const matched = writesOf(entries).filter(({ ifMatch, told }) => ifMatch !== undefined && told.etag !== undefined)
    for (const { mark, ifMatch, told } of matched) {
      const [seen, stored] = [ifMatch!, told.etag!].map((etag) => Number.parseInt(etag, 10))
      if (stored !== seen! + (told.outcome === 'updated' ? 1 : 0))
        find(`write ${mark} was to match ${ifMatch}, and became ${told.etag}`)
    }
    return matched.length
  },

  /** A receipt that is drawn after another one is greater, and the one of a document never goes back. */
  'receipts go forward'({ entries, steps }, find) {
    const drawn = told(entries, 'receipt', 'ok').sort((a, b) => a.wall - b.wall)
    let last = 0
    let greatest = 0n
    for (const { begin, receipt } of [...drawn].sort((a, b) => Number(a.begin) - Number(b.begin))) {
      for (; drawn[last]!.wall < Number(begin); last++)
        if (BigInt(String(drawn[last]!.receipt)) > greatest) greatest = BigInt(String(drawn[last]!.receipt))
      if (BigInt(String(receipt)) <= greatest) find(`receipt ${receipt} was drawn after ${greatest}`)
    }
    for (const { old, new: now } of steps)
      if (old !== null && now !== null && now.receipt < old.receipt)
        find(`${nameOf(now)}: receipt ${now.receipt} after ${old.receipt}`)
    return drawn.length + steps.length
  },

  /** A write is stale if a different one arrived later; one that is equal to what is stored never is. */
  'stale when overtaken'({ entries, steps }, find) {
    const stale = writesOf(entries).filter(({ told }) => told.code === 'PAWL_STALE_WRITE')
    const byReceipt = groupBy(steps, ({ uuid, new: now }) => (now === null ? undefined : `${uuid} ${now.receipt}`))
    for (const { mark, told } of stale) {
      const { uuid, receipt, stored } = told.details as Record<string, string>
      // In a transaction that was not committed there may be none.
      const by = byReceipt.get(`${uuid} ${stored}`)?.[0]
      if (BigInt(receipt!) >= BigInt(stored!)) find(`write ${mark} with receipt ${receipt} was stale after ${stored}`)
      if (by?.new?.body.mark === mark) find(`write ${mark} was stale after an equal one`)
    }
    return stale.length
  },

  /** Every document answers to one key, no other has it, and a POST never changes it. */
  'one key each'(facts, find) {
    const { documents, keys, entries, steps } = facts
    const keyOf = currentKeys(facts)
    const rows = groupBy(keys, ({ id }) => id)
    for (const document of documents)
      if (rows.get(document.id)?.length !== 1) find(`${nameOf(document)} has ${rows.get(document.id)?.length ?? 0} keys`)
    const byKey = groupBy(documents, ({ id, type }) => `${type} ${JSON.stringify(Object.entries(keyOf(id)).sort())}`)
    for (const [key, list] of byKey) if (list.length > 1) find(`${list.length} documents have the key ${key}`)
    const posted = new Set(writesOf(entries).flatMap(({ verb, mark }) => (verb === 'post' ? [mark] : [])))
    for (const step of steps.filter((step) => isWrite(step) && posted.has(step.new!.body.mark)))
      if (!isDeepStrictEqual(ownOf(step.old), ownOf(step.new)))
        find(`${nameOf(step.new!)}: POST ${step.new!.body.mark} changed its key from ${ownOf(step.old)} to ${ownOf(step.new)}`)
    return documents.length
  },

  /** References are where the body has them, and move only with a write of their document. Unified values come from one. */
  'references resolve'({ documents, refs, refChanges, steps, keys }, find) {
    const writing = new Set(
      steps.flatMap((step) =>
        step.old === null || step.new === null || isWrite(step) ? [`${step.xid} ${(step.new ?? step.old)!.id}`] : [],
      ),
    )
    const known = new Set(steps.map(({ old, new: now }) => (now ?? old)!.id))
    for (const { xid, old, new: now } of refChanges) {
      const { from_id, path, to_id } = (now ?? old)!
      if (known.has(from_id) && !writing.has(`${xid} ${from_id}`))
        find(`the reference ${path} of ${from_id} went from ${old?.to_id} to ${to_id} without a write`)
    }
    const rows = new Map(keys.map((row) => [row.id, row.refs[0]]))
    const byFrom = groupBy(refs, ({ from }) => from)
    for (const { id, type, uuid, body } of documents) {
      const own = byFrom.get(id) ?? []
      const slots = [body.school, body.session, body.offering, body.teacher, ...((body.periods as unknown[]) ?? [])]
      const wanted = count(slots, Boolean)
      if (own.length !== wanted) find(`${type} ${uuid} has ${own.length} references, its body ${wanted}`)
      // The school of a section's offering, and of its periods.
      const schools = type === 'Section' ? own.map(({ to, inKey }) => (inKey ? rows.get(rows.get(to)!) : rows.get(to))) : []
      if (new Set(schools).size > 1) find(`${type} ${uuid} has periods of another school than its offering's`)
    }
    return refs.length + refChanges.length
  },

  /** At rest the stored bodies and keys are the current ones, and `verify` finds nothing. */
  converged(facts, find) {
    const { documents, refs, faults, isDrained } = facts
    if (!isDrained) return 0
    const keyOf = currentKeys(facts)
    const byFrom = groupBy(refs, ({ from }) => from)
    for (const { type, uuid, id, key, body } of documents) {
      if (!isDeepStrictEqual(key, keyOf(id)))
        find(`${type} ${uuid} is stored as ${JSON.stringify(key)}, not ${JSON.stringify(keyOf(id))}`)
      for (const { path, to } of byFrom.get(id) ?? [])
        if (!isDeepStrictEqual(bodyAt(body, path), keyOf(to)))
          find(`${type} ${uuid} has ${JSON.stringify(bodyAt(body, path))} at ${path.join('.')}, not ${JSON.stringify(keyOf(to))}`)
    }
    for (const fault of faults) find(`verify: ${fault}`)
    return documents.length
  },

  /** Each change has one event of its own, in its transaction; they tell every stored key, old and new, in order. */
  'events are the changes'({ steps, events }, find) {
    const byUuid = groupBy(events, ({ uuid }) => uuid)
    for (const [uuid, list] of groupBy(steps, (step) => step.uuid)) {
      const wanted = list.flatMap((step) => (eventOf(step) === undefined ? [] : [[step.xid, ...eventOf(step)!]]))
      const found = (byUuid.get(uuid) ?? []).map(({ type, xid, payload: { revision, key, oldKey, newKey } }) => {
        if (type === 'document.key-updated') return [xid, type, revision, oldKey, newKey]
        if (type === 'document.updated') return [xid, type, revision]
        return [xid, type, type === 'document.created' ? revision : null, key]
      })
      const at = wanted.findIndex((each, index) => !isDeepStrictEqual(each, found[index]))
      if (at >= 0 || found.length !== wanted.length)
        find(`${uuid}: change ${at} is ${JSON.stringify(wanted[at])}, its event ${JSON.stringify(found[at] ?? found.at(-1))}`)
    }
    return events.length
  },

  /** No mark is left, and every process stops in order. */
  'all at rest'({ isDrained, marks, notStopped, events }, find) {
    if (!isDrained) find(`${marks.length} marks are left of ${events.length} events`)
    if (!isDrained) for (const { entity, error } of marks.slice(0, 5)) find(`${entity} is marked: ${error}`)
    for (const name of notStopped) find(`${name} did not stop in order`)
    return events.length
  },
} satisfies Record<string, Check<Facts>>

export type CheckName = keyof typeof checks

// What a refused write says: the code, the sentence and the details of each answer of the database.

import { PawlError } from '../../errors.ts'
import type { ModelType } from '../model.ts'
import type { Key } from '../types.ts'
import type { Draft, Link } from './draft.ts'

/** What pawl.write_document and its kin answer. */
export interface Answer {
  readonly outcome:
    | 'created'
    | 'updated'
    | 'unchanged'
    | 'deleted'
    | 'moved'
    | 'model'
    | 'missing'
    | 'exists'
    | 'mismatch'
    | 'stale'
    | 'refuse'
    | 'ignore'
    | 'bound'
    | 'taken'
    | 'renamed'
    | 'referenced'
  readonly uuid?: string
  readonly revision?: number
  readonly receipt?: string
  readonly is_key_changed?: boolean
  readonly holder?: { readonly type: string; readonly uuid: string; readonly key: Key } | null
  readonly parts?: Key
  readonly refs?: readonly string[]
  readonly dependents?: readonly object[]
  /** Of the transaction, where dependents bind it. */
  readonly isolation?: string
  readonly count?: number
  readonly referrers?: readonly object[]
}

export function notFound({ name }: ModelType, uuid: string): PawlError {
  return new PawlError('PAWL_NOT_FOUND', `There is no ${name} with the UUID ${uuid}.`, { details: { type: name, uuid } })
}

export function precondition({ name }: ModelType, problem: string, etag: string | null): PawlError {
  return new PawlError('PAWL_PRECONDITION_FAILED', `${name}: ${problem}. Nothing was written.`, { details: { type: name, etag } })
}

export function stale({ name }: ModelType, { uuid, receipt: stored }: Answer, receipt: string): PawlError {
  const message = `${name} ${uuid} was written by a request that arrived later (receipt ${stored}, this one has ${receipt}). Nothing was written.`
  return new PawlError('PAWL_STALE_WRITE', message, { details: { type: name, uuid, receipt, stored } })
}

/** `ids` are those of the references of the key that was given, by path. */
export function immutable(
  { type, identities }: Draft,
  { uuid, parts = {}, refs = [] }: Answer,
  ids: readonly (string | null)[],
): PawlError {
  const [own] = identities
  const scalars = Object.keys(own.parts).filter((name) => own.parts[name] !== parts[name])
  const references = type.identities[0].references.filter((_, index) => ids[index] !== refs[index]).map(({ path }) => path)
  const fields = [...scalars, ...references]
  const message = `${type.name} ${uuid}: ${fields.join(', ')} cannot change, because its type has keyChange 'refuse'. Nothing was written.`
  return new PawlError('PAWL_KEY_IMMUTABLE', message, { details: { type: type.name, uuid, fields } })
}

export function taken({ name }: ModelType, key: Key, { outcome, holder }: Answer): PawlError {
  const { type, uuid, key: present } = holder!
  if (outcome === 'renamed')
    return new PawlError(
      'PAWL_KEY_RENAMED',
      `${name} ${shownKey(key)} is an old key of ${type} ${uuid}, whose key is ${shownKey(present)}.`,
      {
        details: { type: name, key, uuid, newKey: present },
      },
    )
  return new PawlError('PAWL_KEY_TAKEN', `${name} ${shownKey(key)}: ${type} ${uuid} has this key. Nothing was written.`, {
    details: { type: name, key, holder: { type, uuid, key: present } },
  })
}

export function unified({ name }: ModelType, { uuid, dependents = [], isolation = 'read committed' }: Answer): PawlError {
  const unseen =
    isolation === 'read committed'
      ? 'documents that refer to it are being written'
      : `a ${isolation.toUpperCase()} transaction cannot see every document that binds it; use READ COMMITTED`
  const about = dependents.length === 0 ? unseen : `${dependents.length} or more documents bind it`
  const message = `${name} ${uuid}: a reference of its key cannot move, because ${about}. Nothing was written.`
  return new PawlError('PAWL_UNIFIED', message, { details: { type: name, uuid, dependents } })
}

export function referenced({ name }: ModelType, uuid: string, { count = 0, referrers = [] }: Answer): PawlError {
  const most = count === 10_000 ? 'at least 10000' : count
  return new PawlError('PAWL_REFERENCED', `${name} ${uuid} cannot be deleted: ${most} references lead to it.`, {
    details: { type: name, uuid, count, referrers },
  })
}

export function unresolved({ name }: ModelType, missing: readonly Link[], renamedTo: readonly (Key | undefined)[]): PawlError {
  const references = missing.map(({ path, reference, key }, index) => ({
    path: path.join('.'),
    type: reference.type,
    key,
    ...(renamedTo[index] === undefined ? {} : { renamedTo: renamedTo[index] }),
  }))
  const [first] = references
  const renamed = first!.renamedTo === undefined ? '' : ` any more: its key is now ${shownKey(first!.renamedTo)}`
  const more = references.length > 1 ? `, and ${references.length - 1} more` : ''
  const message = `${name}: ${first!.path} refers to ${first!.type} ${shownKey(first!.key)}, which does not exist${renamed}${more}. Nothing was written.`
  return new PawlError('PAWL_REFERENCE_UNRESOLVED', message, { details: { type: name, references } })
}

export function gaveUp({ name }: ModelType, tries: number): PawlError {
  const message = `${name}: keys that this write names changed ${tries} times while it was written. Nothing was written; call it again.`
  return new PawlError('PAWL_ROLLED_BACK', message, { details: { type: name } })
}

function shownKey(key: Key): string {
  return JSON.stringify(key).slice(0, 200)
}

// The options of documents, as tables.

import { standardSchema } from '../jobs/options.ts'
import {
  anyText,
  boolean,
  duration,
  integer,
  list,
  mapOf,
  nested,
  oneOf,
  option,
  ownTx,
  required,
  type TableOf,
  text,
} from '../kernel/options.ts'
import type {
  DeleteOptions,
  DocumentTypeOptions,
  Key,
  KeyValue,
  ListDocumentsOptions,
  ReferenceOptions,
  ReferrersOptions,
  SuperOptions,
  VerifyOptions,
  WriteOptions,
} from './types.ts'

const path = (doc: string) => text({ to: 500, doc })
const typeText = (doc: string) => text({ to: 200, doc })
const renames = (doc: string) => mapOf(text({ to: 200, doc: 'The other name.' }), { expects: 'an object of names', doc })

export const typeName = required(typeText('The name of a type.'))

const referenceTable = {
  type: required(typeText('The type of the target, or a superclass of it.')),
  as: renames("Other names for fields of the target's key in the key of this type."),
} satisfies TableOf<ReferenceOptions>

export const superOptions = {
  type: required(typeText('The superclass.')),
  as: renames("What fields of this type's key are called in the superclass."),
} satisfies TableOf<SuperOptions>

const reference = {
  ...nested(referenceTable, { doc: 'The target of a reference.' }),
  expects: 'the name of a type, or an object with type and as',
  expand: (given: unknown) => (typeof given === 'string' ? { type: given } : given),
}

const extended = option<SuperOptions>(
  'an object with type and as',
  { doc: 'The superclass, whose key this type answers to as well.' },
  (given) => typeof given === 'object' && given !== null,
)

const isPair = (given: unknown) => Array.isArray(given) && given.length === 2 && given.every((each) => typeof each === 'string')

export const typeTable = {
  identity: required(list(path('A path.'), { doc: 'The paths of scalars and references that make the key.' })),
  references: mapOf(reference, { expects: 'an object of targets by path', doc: 'The references by path, with their targets.' }),
  unify: list(option<readonly [string, string]>('a pair of paths', { doc: 'Two paths.' }, isPair), {
    doc: 'Pairs of paths that must lead to the same document.',
  }),
  extends: extended,
  abstract: boolean({ default: false, doc: 'true: only an identity for other types to extend.' }),
  keyChange: oneOf(['refuse', 'ignore', 'cascade'], { default: 'refuse', doc: 'What a PUT that changes the key means.' }),
  oldKeys: duration({
    from: 0,
    to: 10 * 365 * 86_400_000,
    default: 0,
    doc: 'How long an old key still answers reads.',
  }),
  schema: standardSchema('The schema of the body. What it returns is stored.'),
} satisfies TableOf<DocumentTypeOptions>

/** A header of a client: another string than the etag is refused as such. */
const ifMatch = anyText("The etag that the document must have, or '*' for any.")
const receipt = option<string>(
  'a string of digits, as receipt() returns it',
  { doc: 'When the request arrived, by receipt().', otherwise: 'drawn by the write' },
  (given) => typeof given === 'string' && /^\d{1,18}$/.test(given),
)

export const writeTable = {
  ifMatch,
  ifNoneMatch: oneOf(['*'], { doc: "'*': only if there is no such document yet." }),
  receipt,
  tx: ownTx,
} satisfies TableOf<WriteOptions>

export const manyTable = { tx: ownTx }

export const deleteTable = { ifMatch, tx: ownTx } satisfies TableOf<DeleteOptions>

export const uuidText = required(anyText('The UUID of a document.'))

// ---- reads

const limit = (doc: string) => integer({ from: 1, to: 500, default: 100, doc })
// Often of a client's URL: checked by the verb, not as an option of the code.
const after = anyText('`next` of the previous page.', 'the first page')

export const getTable = { tx: ownTx }

export const listTable = {
  where: mapOf(
    option<KeyValue | Key>('a scalar or a key', { doc: 'The value at a path.' }, () => true),
    { expects: 'an object of values by path', doc: 'By path: a scalar of the body, or the key that a reference has.' },
  ),
  after,
  limit: limit('The maximum number of documents to list.'),
  tx: ownTx,
} satisfies TableOf<ListDocumentsOptions>

export const referrersTable = {
  after,
  limit: limit('The maximum number of references to list.'),
  tx: ownTx,
} satisfies TableOf<ReferrersOptions>

export const verifyTable = {
  type: typeText('Only documents of this type.'),
  after,
  limit: limit('The maximum number of documents to check.'),
} satisfies TableOf<VerifyOptions>

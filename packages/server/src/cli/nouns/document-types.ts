// The types of documents as the database has them, without their schemas: those are code of the application.

import type { DocumentTypeDescription, DocumentTypeOptions, Pawl, Tenant } from 'pawl'
import type { Context, Flags } from '../command.ts'
import { withPawl } from '../database.ts'
import { UsageError } from '../failure.ts'
import { counted, oneLine } from '../terminal.ts'

type Documents = Tenant['documents']

export interface Definition
  extends Required<Pick<DocumentTypeOptions, 'identity' | 'references' | 'unify' | 'abstract' | 'keyChange'>> {
  readonly extends: NonNullable<DocumentTypeOptions['extends']> | null
  readonly oldKeysMs: number
}

/** A verb needs the definitions: this process takes over the stored ones. Undefined: it is about all types. */
export async function withDocuments<T>(
  context: Context<Flags>,
  type: string | undefined,
  work: (documents: Documents, pawl: Pawl) => Promise<T>,
): Promise<T> {
  return withPawl(context, async ({ documents }, pawl) => {
    const types = await documents.types()
    if (type !== undefined && !types.some(({ name }) => name === type)) throw noSuchType(type, types)
    for (const { name, definition } of types) documents.define(name, definedBy(definition))
    return work(documents, pawl)
  })
}

function noSuchType(type: string, types: readonly DocumentTypeDescription[]): UsageError {
  const names = types.map(({ name }) => name)
  const more = names.length > listedMax ? `, and ${names.length - listedMax} more: pawl documents types` : ''
  return new UsageError(
    `There is no type '${oneLine(type)}'.`,
    names.length === 0
      ? 'an application stores its types with its first write; add --tenant if they belong to one'
      : `the types are ${names.slice(0, listedMax).map(oneLine).join(', ')}${more}`,
  )
}

const listedMax = 20

/** For a person who reads faults: stored copies that a rename has not reached yet are among them. */
export async function refreshNote({ projections }: Pawl): Promise<string[]> {
  const [refresh] = await projections.status('pawl.documents')
  if (refresh === undefined)
    return [
      'note  No worker of a process that defines documents has run yet: stored copies are stale after a rename until one does.',
    ]
  const left = refresh.lag + refresh.dirty
  return left === 0
    ? []
    : [`note  The refresh has ${counted(left, 'change')} to go: stale copies are right after it. Run this again then.`]
}

function definedBy(definition: DocumentTypeDescription['definition']): DocumentTypeOptions {
  const { identity, references, unify, extends: parent, abstract, keyChange, oldKeysMs } = definition as unknown as Definition
  return { identity, references, unify, abstract, keyChange, oldKeys: oldKeysMs, ...(parent === null ? {} : { extends: parent }) }
}

// The types of documents as the database has them, without their schemas: those are code of the application.

import type { DocumentTypeDescription, DocumentTypeOptions, Tenant } from 'pawl'
import type { Context, Flags } from '../command.ts'
import { withPawl } from '../database.ts'

type Documents = Tenant['documents']

export interface Definition
  extends Required<Pick<DocumentTypeOptions, 'identity' | 'references' | 'unify' | 'abstract' | 'keyChange'>> {
  readonly extends: NonNullable<DocumentTypeOptions['extends']> | null
  readonly oldKeysMs: number
}

/** A verb needs the definitions: this process takes over the stored ones. */
export async function withDocuments<T>(context: Context<Flags>, work: (documents: Documents) => Promise<T>): Promise<T> {
  return withPawl(context, async ({ documents }) => {
    for (const { name, definition } of await documents.types()) documents.define(name, definedBy(definition))
    return work(documents)
  })
}

function definedBy(definition: DocumentTypeDescription['definition']): DocumentTypeOptions {
  const { identity, references, unify, extends: parent, abstract, keyChange, oldKeysMs } = definition as unknown as Definition
  return { identity, references, unify, abstract, keyChange, oldKeys: oldKeysMs, ...(parent === null ? {} : { extends: parent }) }
}

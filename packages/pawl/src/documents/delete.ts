// Deletes: only what nothing refers to.

import { statement } from '../db/statement.ts'
import type { ModelType } from './model.ts'
import type { Answer } from './refusals.ts'
import * as refusals from './refusals.ts'
import { matchedRevision, send, type Writing } from './write.ts'

const deleteStatement = statement(import.meta.url, 'delete-document')

export async function deleteDocument(
  writing: Writing,
  type: ModelType,
  uuid: string,
  ifMatch: string | undefined,
): Promise<void> {
  const revision = await matchedRevision(writing, type, uuid, ifMatch)
  const answer = await send<Answer>(writing, deleteStatement, { type: type.name, uuid, revision })
  if (answer.outcome === 'deleted') return
  if (answer.outcome === 'referenced') throw refusals.referenced(type, uuid, answer)
  if (answer.outcome === 'missing' && ifMatch === undefined) throw refusals.notFound(type, uuid)
  throw refusals.precondition(
    type,
    answer.outcome === 'missing'
      ? 'there is no such document for ifMatch'
      : 'the document has changed since ifMatch was compared',
    null,
  )
}

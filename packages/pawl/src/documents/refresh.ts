// The refresh: after a rename the stored bodies and keys of dependents follow, in the background. Readers do not wait for it, since reads fill in the
// current keys; it serves what reads the tables or the events.
//
// An entity is a document of a tenant ('acme/17': bring it to the stored keys of its targets) or a walk ('acme/17>0': do so with all that refer to it,
// after an id). For each reference it holds that its value is the stored key of its target, or that one of the two is still marked.

import { type Db, dbOf } from '../db/db.ts'
import { numbersLiteral, statement } from '../db/statement.ts'
import { probe } from '../kernel/probe.ts'
import { ignoringOwnEvents } from '../projections/definition.ts'
import type { LogEvent, ProjectionTx, RefreshContext, StateProjectionOptions } from '../projections/types.ts'

const walkStatement = statement(import.meta.url, 'walk-documents', 'any')
const refreshStatement = statement(import.meta.url, 'refresh-documents', 'any')

/** The state projection of the refresh. */
export const refreshName = 'pawl.documents'

/** References that are walked in one transaction: about 200 ms; and in one statement, so that what depends on them has room in it too. */
const referencesMax = 8000
const chunkMax = 4000
/** The most that one document has: a walk that may read fewer makes no progress. */
const documentReferencesMax = 1000
const entitiesMax = 1000
/** A document that another transaction writes just now is tried again after this. */
const lockedDelayMs = 250

export const refreshOptions: StateProjectionOptions = {
  kind: 'state',
  channel: 'documents',
  from: 'oldest',
  // All that its transaction appends has the cause 'cascade'.
  entity: ignoringOwnEvents(entitiesOf),
  refreshMany: refreshEntities,
  tuning: { batchMax: entitiesMax },
}

/** None for what a refresh has stored: it marks by itself whatever must follow. */
export function entitiesOf({ tenant, type, data, headers }: LogEvent): readonly string[] {
  const { id } = headers
  if (typeof id !== 'string' || (data as { cause?: unknown } | null)?.cause === 'cascade') return []
  if (type === 'document.key-updated' || headers.walk === true) return [selfOf(tenant, id), walkOf(tenant, { id, after: '0' })]
  return type === 'document.created' || type === 'document.updated' ? [selfOf(tenant, id)] : []
}

interface Walk {
  readonly id: string
  readonly after: string
}

interface Work {
  readonly documents: string[]
  readonly walks: Walk[]
}

async function refreshEntities(entities: readonly string[], tx: ProjectionTx, { mark }: RefreshContext): Promise<void> {
  for (const [tenant, work] of byTenant(entities)) {
    const { walks, locked } = await refreshTenant(tenant, work, dbOf(tx))
    if (probe.on) await probe.hit('documents.refresh.written', tenant)
    await mark(walks.map((walk) => walkOf(tenant, walk)))
    await mark(
      locked.map((id) => selfOf(tenant, id)),
      { delay: lockedDelayMs },
    )
  }
}

/** A walk goes on through documents whose keys contain a walked one, changed or not, as far as one transaction should. */
async function refreshTenant(tenant: string, { documents, walks }: Work, db: Db) {
  const locked: string[] = []
  const refresh = async (ids: readonly string[]): Promise<string[]> => {
    if (ids.length === 0) return []
    const answer = await refreshDocuments(tenant, ids, db)
    locked.push(...answer.locked)
    return answer.onward
  }
  let left = walks
  // Before the documents that are marked themselves: most of those are walked too. Depth first, so that few walks are left over.
  for (let budget = referencesMax; left.length > 0 && budget > documentReferencesMax; ) {
    const walked = await walkDocuments(tenant, left, Math.min(budget, chunkMax), db)
    const onward = new Set([...walked.onward, ...(await refresh(walked.rest))])
    left = [...fromStart(onward), ...walked.left]
    budget -= walked.count
  }
  return { walks: [...left, ...fromStart(await refresh(documents))], locked }
}

function fromStart(ids: Iterable<string>): Walk[] {
  return [...ids].map((id) => ({ id, after: '0' }))
}

async function walkDocuments(tenant: string, walks: readonly Walk[], limit: number, db: Db) {
  const targets = numbersLiteral(walks.map(({ id }) => id))
  const afters = numbersLiteral(walks.map(({ after }) => after))
  const [row] = await db.run<WalkRow>(walkStatement, { tenant, targets, afters, limit })
  const after = idsOf(row!.afters)
  const left = idsOf(row!.targets).map((id, index): Walk => ({ id, after: after[index]! }))
  return { count: Math.max(1, row!.walked), onward: idsOf(row!.onward), rest: idsOf(row!.rest), left }
}

interface WalkRow extends Record<'onward' | 'targets' | 'afters' | 'rest', string> {
  readonly walked: number
}

async function refreshDocuments(tenant: string, ids: readonly string[], db: Db) {
  const [row] = await db.run<Record<'onward' | 'locked', string>>(refreshStatement, { tenant, ids: numbersLiteral(ids) })
  return { onward: idsOf(row!.onward), locked: idsOf(row!.locked) }
}

/** Of a bigint[] as a string. */
function idsOf(text: string): string[] {
  return text === '{}' ? [] : text.slice(1, -1).split(',')
}

// ---- entities

function selfOf(tenant: string, id: string): string {
  return `${tenant}/${id}`
}

function walkOf(tenant: string, { id, after }: Walk): string {
  return `${tenant}/${id}>${after}`
}

function byTenant(entities: readonly string[]): Map<string, Work> {
  const tenants = new Map<string, Work>()
  for (const entity of entities) {
    const [, tenant = '', id = '', after] = /^(.*)\/(\d+)(?:>(\d+))?$/s.exec(entity) ?? []
    const work = tenants.get(tenant) ?? { documents: [], walks: [] }
    if (after === undefined) work.documents.push(id)
    else work.walks.push({ id, after })
    tenants.set(tenant, work)
  }
  return tenants
}

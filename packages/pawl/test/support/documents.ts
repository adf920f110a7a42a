// Types of schools, and writes of documents as plain SQL: a test of reads and of the refresh holds such a write open where it likes.

import type { Documents } from 'pawl'
import { keyHash, ownHash } from '../../src/documents/canonical.ts'
import { compileModel, defineType, hasWays, type Model, type Reference } from '../../src/documents/model.ts'
import { keysOf, Nodes } from '../../src/documents/nodes.ts'
import { shapeHash } from '../../src/documents/stored-types.ts'
import type { DocumentTypeOptions, Key, KeyValue } from '../../src/documents/types.ts'

export const schoolTypes: Readonly<Record<string, DocumentTypeOptions>> = {
  EducationOrganization: { identity: ['educationOrganizationId'], abstract: true },
  School: {
    identity: ['schoolId'],
    extends: { type: 'EducationOrganization', as: { schoolId: 'educationOrganizationId' } },
    keyChange: 'cascade',
  },
  Session: {
    identity: ['sessionName', 'schoolReference'],
    references: { schoolReference: 'School' },
    keyChange: 'cascade',
    oldKeys: '1d',
  },
  Offering: { identity: ['code', 'sessionReference'], references: { sessionReference: 'Session' } },
  Section: {
    identity: ['sectionId', 'offeringReference'],
    references: { offeringReference: 'Offering', 'periods[].periodReference': 'Period' },
  },
  Period: { identity: ['period', 'schoolReference'], references: { schoolReference: 'School' } },
  /** Fields with other names, and references that are scalars. */
  Transfer: {
    identity: ['no', 'from', 'to'],
    references: {
      from: { type: 'School', as: { schoolId: 'fromSchoolId' } },
      to: { type: 'School', as: { schoolId: 'toSchoolId' } },
    },
  },
  Stamp: { identity: ['stampId', 'transfer'], references: { transfer: 'Transfer' } },
  /** By the superclass. */
  Note: { identity: ['noteId', 'about'], references: { about: 'EducationOrganization' } },
  Employee: { identity: ['employeeId'], references: { manager: 'Employee', 'team[].member': 'Employee' }, keyChange: 'cascade' },
}

export function defineSchools(documents: Documents): void {
  for (const [name, options] of Object.entries(schoolTypes)) documents.define(name, options)
}

export const schoolModel: Model = compileModel(
  new Map(Object.entries(schoolTypes).map(([name, options]) => [name, defineType(name, options as never)])),
)

export interface Queryable {
  query(text: string, values?: unknown[]): Promise<unknown>
}

type Body = Readonly<Record<string, unknown>>

interface Found {
  readonly path: readonly string[]
  readonly reference: Reference
  readonly key: Key
}

const rowsOf = async <Row>(db: Queryable, text: string, values: unknown[]): Promise<Row[]> => {
  const answer = (await db.query(text, values)) as Row[] | { rows: Row[] }
  return Array.isArray(answer) ? answer : answer.rows
}

/** The id of a new document. */
export async function plant(db: Queryable, type: string, body: Body, tenant = ''): Promise<string> {
  const [row] = await rowsOf<{ id: string }>(db, "select nextval('pawl.document_id')::text as id", [])
  await storeType(db, type, tenant)
  await db.query(
    "insert into pawl.document (tenant, id, type, receipt, content, keys, body) values ($1, $2, $3, 1, '', '{}', '{}')",
    [tenant, row!.id, type],
  )
  await store(db, row!.id, type, body, tenant, 'document.created')
  return row!.id
}

/** As a PUT: the key may change. */
export async function replant(db: Queryable, id: string, type: string, body: Body, tenant = ''): Promise<void> {
  await db.query('update pawl.document set revision = revision + 1 where tenant = $1 and id = $2', [tenant, id])
  await store(db, id, type, body, tenant, undefined)
}

async function storeType(db: Queryable, type: string, tenant: string): Promise<void> {
  const { identities } = schoolModel.get(type)!
  const supers = identities.slice(1).map(({ type, names }) => ({ type, names }))
  await db.query(
    'insert into pawl.document_type (tenant, name, shape_hash, definition) values ($1, $2, $3, $4) on conflict do nothing',
    [
      tenant,
      type,
      shapeHash(schoolModel.get(type)!),
      JSON.stringify({ supers, hasWays: hasWays(schoolModel, schoolModel.get(type)!) }),
    ],
  )
}

async function store(
  db: Queryable,
  id: string,
  name: string,
  body: Body,
  tenant: string,
  event: string | undefined,
): Promise<void> {
  const type = schoolModel.get(name)!
  const nodes = new Nodes(schoolModel)
  const links = linksOf(type.references, body)
  const targets = links.map(({ reference, key }) => nodes.add(schoolModel.get(reference.type)!, key))
  const { own, refs, ends } = nodes.values
  const [found] = await rowsOf<{ ids: (string | null)[] | null }>(
    db,
    'select pawl.find_documents($1, $2::bytea[], $3::integer[], $4::integer[])::text[] as ids',
    [tenant, own, refs, ends],
  )
  const ids = targets.map((target, index) => {
    const isSelf = links[index]!.reference.type === name
    if (found!.ids![target] === null && !isSelf) throw new Error(`${name} refers to what does not exist`)
    return found!.ids![target] ?? id
  })
  const key: Record<string, KeyValue> = {}
  for (const { name, path } of type.identities[0].scalars) key[name] = at(body, path) as KeyValue
  for (const { reference, key: target } of links)
    if (reference.inKey) for (const [field, value] of Object.entries(target)) key[reference.names?.[field] ?? field] = value
  await db.query('delete from pawl.document_key where tenant = $1 and document_id = $2', [tenant, id])
  for (const identity of type.identities) {
    const parts = Object.fromEntries(identity.scalars.map(({ name, path }) => [name, at(body, path) as KeyValue]))
    const made = identity.references.map((reference) => ids[links.findIndex((link) => link.reference === reference)]!)
    await db.query(
      'insert into pawl.document_key (tenant, hash, document_id, type, parts, refs) values ($1, $2, $3, $4, $5, $6)',
      [tenant, keyHash(ownHash(identity.type, parts), made), id, identity.type, JSON.stringify(parts), made],
    )
  }
  await db.query('delete from pawl.document_ref where tenant = $1 and from_id = $2', [tenant, id])
  for (const [index, { path, reference }] of links.entries())
    await db.query(
      'insert into pawl.document_ref (tenant, from_id, path, to_id, type, in_key, names) values ($1, $2, $3, $4, $5, $6, $7)',
      [tenant, id, path, ids[index], reference.type, reference.inKey, reference.names && JSON.stringify(reference.names)],
    )
  await db.query(
    `with old as (select keys, uuid from pawl.document where tenant = $1 and id = $2),
     new as (update pawl.document set keys = $3, body = $4 where tenant = $1 and id = $2)
     select pawl.append_event($1, 'documents', $5, o.uuid::text, coalesce($6, case when o.keys = $3 then 'document.updated' else 'document.key-updated' end), '{}',
       jsonb_build_object('id', $2::text)) from old o`,
    [tenant, id, JSON.stringify(keysOf(type, key)), JSON.stringify(body), name, event ?? null],
  )
}

/** Adds documents that have the key of this one in theirs, at the reference `school`. They are as many rows as a write of each would store. */
export async function plantDependents(db: Queryable, tenant: string, uuid: string, count: number): Promise<void> {
  await db.query(
    `with parent as (select id, keys -> 'School' as key from pawl.document where tenant = $1 and uuid = $2),
     new as (insert into pawl.document (tenant, id, type, receipt, content, keys, body)
       select $1, nextval('pawl.document_id'), 'Session', 1, '', jsonb_build_object('Session', p.key || jsonb_build_object('name', 's' || n)),
         jsonb_build_object('name', 's' || n, 'school', p.key)
       from parent p cross join generate_series(1, $3) n returning id, body),
     key as (insert into pawl.document_key (tenant, hash, document_id, type, parts, refs)
       select $1, sha256(int8send(n.id)), n.id, 'Session', n.body - 'school', array[p.id] from new n cross join parent p)
     insert into pawl.document_ref (tenant, from_id, path, to_id, type, in_key)
     select $1, n.id, '{school}', p.id, 'School', true from new n cross join parent p`,
    [tenant, uuid, count],
  )
}

/** Rows written, and pages read, of Pawl's tables and their indexes, by what this connection does in `work`. */
export async function costOf(client: Queryable, work: () => Promise<unknown>): Promise<{ rows: number; pages: number }> {
  const costs = async () => {
    const [row] = await rowsOf<{ rows: number; pages: number }>(
      client,
      `select sum(pg_stat_get_xact_tuples_inserted(c.oid) + pg_stat_get_xact_tuples_updated(c.oid) + pg_stat_get_xact_tuples_deleted(c.oid))::integer as rows,
         sum(pg_stat_get_xact_blocks_fetched(c.oid))::integer as pages
       from pg_class c where c.relnamespace = 'pawl'::regnamespace and c.relkind in ('r', 'i')`,
      [],
    )
    return row!
  }
  const before = await costs()
  await work()
  const after = await costs()
  return { rows: after.rows - before.rows, pages: after.pages - before.pages }
}

function linksOf(references: readonly Reference[], body: Body): Found[] {
  return references.flatMap((reference) => {
    let places: { value: unknown; path: string[] }[] = [{ value: body, path: [] }]
    for (const { name, isMany } of reference.segments) {
      places = places.flatMap(({ value, path }) => {
        const inner = (value as Record<string, unknown> | undefined)?.[name]
        if (inner === undefined) return []
        if (!isMany) return [{ value: inner, path: [...path, name] }]
        return (inner as unknown[]).map((value, index) => ({ value, path: [...path, name, String(index)] }))
      })
    }
    const [field] = schoolModel.get(reference.type)!.key
    return places.map(({ value, path }) => ({
      path,
      reference,
      key: (typeof value === 'object' ? value : { [field!]: value }) as Key,
    }))
  })
}

function at(body: unknown, path: readonly string[]): unknown {
  return path.reduce((value, name) => (value as Record<string, unknown>)[name], body)
}

// A record set as data: its scope, and for each type its key and a JSON Schema of a row. It is kept in the database, so that the server, a form
// or a script in another language knows a set that only the application defines.

import type { StandardSchema } from '../../jobs/types.ts'
import type { DefinedSet, DefinedType } from '../sets.ts'
import type { Column, RecordSetDescription } from '../types.ts'
import { dateParts } from './columns.ts'

type JsonSchema = Readonly<Record<string, unknown>>

export function describeSet(set: DefinedSet): RecordSetDescription {
  return {
    name: set.name,
    schemaVersion: set.schemaVersion,
    scope: set.scope,
    attributes: set.attributes,
    typeColumn: set.typeColumn,
    missing: set.missing,
    types: Object.fromEntries(
      [...set.types].map(([name, type]) => [
        name,
        { key: type.key, schema: schemaOfType(type, set.unknownColumns === 'reject') },
      ]),
    ),
  }
}

/** What a row may be as it is sent. The rules of the columns, and those of the type's own schema if it can tell them. */
function schemaOfType(type: DefinedType, isClosed: boolean): JsonSchema {
  const required = type.columns.filter(({ column }) => column.required === true).map(({ name }) => name)
  const own = type.schema === undefined ? undefined : ownSchema(type.schema)
  return {
    $schema: 'https://json-schema.org/draft/2020-12/schema',
    type: 'object',
    properties: Object.fromEntries(type.columns.map(({ name, column }) => [name, schemaOfColumn(column)])),
    ...(required.length > 0 && { required }),
    ...(isClosed && { additionalProperties: false }),
    ...(own !== undefined && { allOf: [own] }),
    ...(type.schema !== undefined && own === undefined && { $comment: 'The application checks more than this schema.' }),
  }
}

function schemaOfColumn(column: Column): JsonSchema {
  switch (column.type) {
    case 'text':
      return {
        type: 'string',
        ...(column.oneOf !== undefined && { enum: column.oneOf }),
        // JSON Schema knows no flags; a pattern that needs one is left out rather than told wrongly.
        ...(column.pattern !== undefined && !/[imsgy]/.test(column.pattern.flags) && { pattern: column.pattern.source }),
        ...(column.charsMax !== undefined && { maxLength: column.charsMax }),
      }
    case 'number':
    case 'integer':
      // Also as text, which keeps every digit: so they are stored, exported, and seen by the type's own schema.
      return {
        type: [column.type, 'string'],
        pattern: column.type === 'integer' ? '^\\s*[+-]?\\d+\\s*$' : '^\\s*[+-]?(\\d+\\.?\\d*|\\.\\d+)([eE][+-]?\\d+)?\\s*$',
        ...(column.min !== undefined && { minimum: Number(column.min) }),
        ...(column.max !== undefined && { maximum: Number(column.max) }),
      }
    case 'boolean':
      return { type: 'boolean' }
    case 'date': {
      const iso = { type: 'string', format: 'date' }
      if (column.format === undefined) return iso
      return { anyOf: [iso, { type: 'string', pattern: dateParts(column.format)!.pattern.source }] }
    }
    case 'timestamp':
      return { type: 'string', format: 'date-time' }
    case 'json':
      return {}
  }
}

/** Standard Schemas may be able to say themselves as JSON Schema. One that cannot, or holds what JSON Schema cannot say, has none. */
function ownSchema(schema: StandardSchema): JsonSchema | undefined {
  const standard = schema['~standard'] as { jsonSchema?: { input(options: { target: string }): JsonSchema } }
  try {
    const { $schema: _, ...own } = standard.jsonSchema?.input({ target: 'draft-2020-12' }) ?? {}
    return Object.keys(own).length === 0 ? undefined : own
  } catch {
    return undefined
  }
}

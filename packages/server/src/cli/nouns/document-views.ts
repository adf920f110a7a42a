// Documents as a terminal shows them.

import type { Dependents, Document, DocumentTypeDescription, Fault, Referrer, Written } from 'pawl'
import type { Answer } from '../answers.ts'
import { type Column, oneLine, relativeTime } from '../terminal.ts'
import type { Definition } from './document-types.ts'

export const typeColumns: readonly Column<DocumentTypeDescription>[] = [
  { title: 'type', value: ({ name }) => name },
  { title: 'extends', value: ({ definition }) => (definition as unknown as Definition).extends?.type ?? '' },
  { title: 'key change', value: ({ definition }) => String(definition.abstract ? 'abstract' : definition.keyChange) },
  { title: 'changed', value: ({ changedAt }) => relativeTime(changedAt) },
  { title: 'identity', value: ({ definition }) => (definition as unknown as Definition).identity.join(', ') },
]

export const listColumns: readonly Column<Document>[] = [
  { title: 'uuid', value: ({ uuid }) => uuid },
  { title: 'type', value: ({ type }) => type },
  { title: 'changed', value: ({ changedAt }) => relativeTime(changedAt) },
  { title: 'key', value: ({ key }) => JSON.stringify(key) },
]

export function documentAnswer(document: Document): Answer {
  const { uuid, type, etag, key, keyHash, body, createdAt, changedAt, byOldKey } = document
  const at = (time: Date): string => `${time.toISOString()} (${relativeTime(time)})`
  return {
    json: document,
    show: (terminal) => {
      terminal.pairs([
        ['uuid', uuid, 'bold'],
        ['type', type],
        ['key', oneLine(JSON.stringify(key))],
        ['key hash', keyHash],
        ['etag', etag],
        ['created', at(createdAt)],
        ['changed', at(changedAt)],
      ])
      terminal.line(JSON.stringify(body, null, 2))
    },
    say: byOldKey ? ['note  It was found by a key that it no longer has.'] : [],
  }
}

export function writtenAnswer(written: Written): Answer {
  const { uuid, outcome, isKeyChanged, etag, key } = written
  const pairs = [
    ['uuid', uuid, 'bold'],
    ['outcome', isKeyChanged ? `${outcome}, with a new key` : outcome],
    ['key', oneLine(JSON.stringify(key))],
    ['etag', etag],
  ] as const
  return { json: written, show: (terminal) => terminal.pairs(pairs) }
}

export function deletedAnswer(uuid: string): Answer {
  const outcome = 'deleted'
  const pairs = Object.entries({ uuid, outcome })
  return { json: { uuid, outcome }, show: (terminal) => terminal.pairs(pairs) }
}

export const referrerColumns: readonly Column<Referrer>[] = [
  { title: 'type', value: ({ type }) => type },
  { title: 'uuid', value: ({ uuid }) => uuid },
  { title: 'path', value: ({ path }) => path },
]

export const levelColumns: readonly Column<Dependents['levels'][number]>[] = [
  { title: 'depth', value: ({ depth }) => String(depth), isRight: true },
  { title: 'documents', value: ({ count }) => String(count), isRight: true },
  { title: 'type', value: ({ type }) => type },
]

export const faultColumns: readonly Column<Fault>[] = [
  { title: 'type', value: ({ type }) => type },
  { title: 'uuid', value: ({ uuid }) => uuid },
  { title: 'fault', value: ({ fault }) => fault },
]

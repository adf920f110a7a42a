// `pawl documents ...`: read, write and check documents.

import { type Fault, type Key, type KeyValue, PawlError } from 'pawl'
import { pageAnswer, pageFlags } from '../answers.ts'
import { command, given, type Noun, text, texts, toggle } from '../command.ts'
import { withPawl } from '../database.ts'
import { exitCodes, UsageError } from '../failure.ts'
import { counted } from '../terminal.ts'
import { refreshNote, withDocuments } from './document-types.ts'
import {
  deletedAnswer,
  documentAnswer,
  faultColumns,
  levelColumns,
  listColumns,
  referrerColumns,
  typeColumns,
  writtenAnswer,
} from './document-views.ts'
import { readPayload } from './payload.ts'

const typeArg = ['<type>', 'the type of the document'] as const
const uuidArg = ['<uuid>', 'the UUID of the document'] as const
const bodyArg = ['<body>', 'the body as JSON, @file, or - for stdin'] as const
const ifMatch = text('--if-match <etag>', "only if the document has this etag; '*': any")

const types = command({
  name: 'types',
  summary: 'List the types as they are stored.',
  examples: ['pawl documents types', 'pawl documents types -o json'],
  run: async (context) => {
    const items = await withPawl(context, ({ documents: all }) => all.types())
    return pageAnswer({ items, next: null }, typeColumns, 'No types. They are stored with the first write of an application.')
  },
})

const list = command({
  name: 'list',
  summary: 'List the documents of a type, oldest first.',
  examples: ['pawl documents list School', 'pawl documents list Session --where \'schoolReference={"schoolId": 1}\''],
  args: [typeArg],
  flags: { where: texts('--where <path=value>', 'only where the body or a reference has this value, as JSON'), ...pageFlags },
  run: async (context, type: string) => {
    const { limit, where = [], after } = context.flags
    const options = { limit, where: Object.fromEntries(where.map(condition)), ...given({ after }) }
    return pageAnswer(await withDocuments(context, type, (all) => all.list(type, options)), listColumns, 'No such documents.')
  },
})

/** 'a.b=1' is a number, 'a.b=Fall' and 'a.b="1"' are strings. */
function condition(given: string): [path: string, value: KeyValue | Key] {
  const at = given.indexOf('=')
  if (at < 1) throw new UsageError(`--where must be a path and a value, got '${given}'.`, "write --where 'path=value'")
  const [path, value] = [given.slice(0, at), given.slice(at + 1)]
  try {
    return [path, JSON.parse(value) as KeyValue | Key]
  } catch {
    return [path, value]
  }
}

const get = command({
  name: 'get',
  summary: 'Show a document by its UUID or its key.',
  examples: ['pawl documents get School \'{"schoolId": 1}\'', 'pawl documents get School 0f6e1c9a-5d1f-4a8e-9a41-6f2f3a7a6d11'],
  args: [typeArg, ['<uuid-or-key>', 'its UUID, or its key as a JSON object']],
  run: async (context, type: string, which: string) => {
    const isKey = which.startsWith('{')
    const key = isKey ? ((await readPayload(which, context.terminal, 'key')) as Key) : which
    const document = await withDocuments(context, type, (all) => all.get(type, key))
    if (document !== undefined) return documentAnswer(document)
    throw new PawlError('PAWL_NOT_FOUND', `There is no ${type} with the ${isKey ? 'key' : 'UUID'} ${which}.`)
  },
})

const post = command({
  name: 'post',
  summary:
    'Write a document by its key: a new one, or the one that has this key. Its schema, code of the application, is not asked.',
  examples: ['pawl documents post School \'{"schoolId": 1, "name": "North"}\'', 'pawl documents post School @school.json'],
  args: [typeArg, bodyArg],
  flags: { ifMatch, new: toggle('--new', 'only if there is no such document yet') },
  run: async (context, type: string, bodyText: string) => {
    const { ifMatch: etag, new: isNew } = context.flags
    const body = await readPayload(bodyText, context.terminal, 'body')
    const options = given({ ifMatch: etag, ifNoneMatch: isNew ? ('*' as const) : undefined })
    return writtenAnswer(await withDocuments(context, type, (all) => all.post(type, body, options)))
  },
})

const put = command({
  name: 'put',
  summary:
    'Write an existing document, whose key may change if its type allows it. Its schema, code of the application, is not asked.',
  examples: ['pawl documents put School 0f6e1c9a-5d1f-4a8e-9a41-6f2f3a7a6d11 @school.json --if-match 3.pT0cMZb7rVbqk0sd'],
  args: [typeArg, uuidArg, bodyArg],
  flags: { ifMatch },
  run: async (context, type: string, uuid: string, bodyText: string) => {
    const body = await readPayload(bodyText, context.terminal, 'body')
    const options = given({ ifMatch: context.flags.ifMatch })
    return writtenAnswer(await withDocuments(context, type, (all) => all.put(type, uuid, body, options)))
  },
})

const remove = command({
  name: 'delete',
  summary: 'Delete a document that no other refers to.',
  examples: ['pawl documents delete School 0f6e1c9a-5d1f-4a8e-9a41-6f2f3a7a6d11'],
  args: [typeArg, uuidArg],
  flags: { ifMatch },
  run: async (context, type: string, uuid: string) => {
    await withDocuments(context, type, (all) => all.delete(type, uuid, given({ ifMatch: context.flags.ifMatch })))
    return deletedAnswer(uuid)
  },
})

const referrers = command({
  name: 'referrers',
  summary: 'List what refers to a document: as long as there is any, it cannot be deleted.',
  examples: ['pawl documents referrers School 0f6e1c9a-5d1f-4a8e-9a41-6f2f3a7a6d11'],
  args: [typeArg, uuidArg],
  flags: pageFlags,
  run: async (context, type: string, uuid: string) => {
    const { limit, after } = context.flags
    const found = await withDocuments(context, type, (all) => all.referrers(type, uuid, { limit, ...given({ after }) }))
    const more = found.next === null ? [] : [`There are more: --after ${found.next}`]
    const say = [`${found.isComplete ? '' : 'more than '}${counted(found.count, 'reference')}`, ...more]
    return { json: found, lines: found.items, show: (terminal) => terminal.table(referrerColumns, found.items), say }
  },
})

const dependents = command({
  name: 'dependents',
  summary: 'Count the documents that a rename of this one would reach, by level and type.',
  examples: ['pawl documents dependents Session 0f6e1c9a-5d1f-4a8e-9a41-6f2f3a7a6d11'],
  args: [typeArg, uuidArg],
  run: async (context, type: string, uuid: string) => {
    const found = await withDocuments(context, type, (all) => all.dependents(type, uuid))
    const say = found.isComplete ? [] : ['There are more: the count ends at 100,000.']
    return { json: found, lines: found.levels, show: (terminal) => terminal.table(levelColumns, found.levels), say }
  },
})

/** Stops after a page with which there are this many. */
const faultsMax = 100

const verify = command({
  name: 'verify',
  summary: 'Compare keys, references and stored bodies of all documents with each other. Exits with 6 if it finds faults.',
  examples: ['pawl documents verify', 'pawl documents verify --type Section'],
  flags: { type: text('--type <type>', 'only documents of this type'), after: pageFlags.after },
  run: async (context) => {
    const { type, after } = context.flags
    const faults: Fault[] = []
    let [checked, next] = [0, after ?? null]
    const notes = await withDocuments(context, type, async (all, pawl) => {
      do {
        const report = await all.verify({ limit: 500, ...given({ type, after: next ?? undefined }) })
        faults.push(...report.faults)
        checked += report.checked
        next = report.next
        context.terminal.status(`${counted(checked, 'document')} checked`)
      } while (next !== null && faults.length < faultsMax)
      return faults.length === 0 ? [] : refreshNote(pawl)
    })
    context.terminal.status('')
    const more = next === null ? [] : [`There are more documents: --after ${next}`]
    return {
      json: { checked, faults, next },
      lines: faults,
      show: (terminal) => terminal.table(faultColumns, faults),
      say: [`${counted(checked, 'document')} checked, ${counted(faults.length, 'fault')}`, ...more, ...notes],
      exit: faults.length === 0 ? exitCodes.ok : exitCodes.faultsFound,
    }
  },
})

export const documents: Noun = {
  name: 'documents',
  summary: 'Read, write and check documents.',
  examples: ['pawl documents types', 'pawl documents get School \'{"schoolId": 1}\''],
  verbs: [types, list, get, post, put, remove, referrers, dependents, verify],
  next: {
    PAWL_COMMIT_UNKNOWN: 'pawl documents get <type> <key>: check whether it was stored before you try again',
    PAWL_CONFIG: 'pawl documents types; --help lists the flags of the command',
    PAWL_DOCUMENT_INVALID: 'correct the body, key or UUID; pawl documents types lists what keys are made of',
    PAWL_KEY_IMMUTABLE: 'keep the key, or let the application define the type with keyChange: cascade',
    PAWL_KEY_RENAMED: 'use the new key',
    PAWL_KEY_TAKEN: 'pawl documents get <type> <key>',
    PAWL_NOT_FOUND: 'pawl documents list <type>; add --tenant if the document belongs to one',
    PAWL_PRECONDITION_FAILED: 'pawl documents get <type> <uuid>, then try again with its etag',
    PAWL_REFERENCED: 'pawl documents referrers <type> <uuid>',
    PAWL_REFERENCE_UNRESOLVED: 'post what it refers to first',
    PAWL_STALE_WRITE: 'pawl documents get <type> <uuid>, then try again',
    PAWL_UNIFIED: 'pawl documents dependents <type> <uuid>',
  },
}

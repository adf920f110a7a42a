import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import * as pawls from 'pawl'
import { createPawl, once, type Pawl } from 'pawl'
import * as admin from 'pawl/admin'
import { xlsx } from 'pawl/records/xlsx'
import * as testing from 'pawl/testing'
import { expect, test } from 'vitest'
import { resolve, type Table } from '../packages/pawl/src/kernel/options.ts'
import { nowhere, pawlOfNowhere } from '../packages/pawl/test/support/nowhere.ts'
import { defineLoads } from '../packages/pawl/test/support/records.ts'
import { calls, optionsFile, page, rowsOf } from './options.ts'
import { root } from './phase.ts'

const listed = Object.values(calls).flatMap((group) => Object.entries(group))
const all = Object.fromEntries(listed.filter((entry): entry is [string, Table] => typeof entry[1] === 'object'))

test('[G2] docs/reference/options.md is what the tables say', () => {
  expect(readFileSync(optionsFile, 'utf8'), 'run: node scripts/run.mjs scripts/options.ts').toBe(page())
})

test('[G2] everything that can be called has a line in the reference', () => {
  const names = (prefix: string) =>
    listed.flatMap(([call]) => (call.startsWith(prefix) ? [/^(\w+)\(/.exec(call.slice(prefix.length))?.[1]] : []))
  const classes: readonly [string, ...{ readonly prototype: object }[]][] = [
    ['pawl.', pawls.Pawl],
    ['pawl.jobs.', pawls.Jobs],
    ['pawl.events.', pawls.TenantEvents, pawls.EventLog],
    ['pawl.projections.', pawls.Projections],
    ['pawl.records.', pawls.Records],
    ['scope.', pawls.RecordScope],
    ['worker.', pawls.Worker],
  ]
  for (const [prefix, ...owners] of classes) {
    const named = new Set(names(prefix).filter((name) => name !== undefined))
    expect([...named].sort(), prefix).toEqual(owners.flatMap(({ prototype }) => methodsOf(prototype)).sort())
  }
  const exported = Object.entries({ ...pawls, ...admin, ...testing, xlsx }).filter(
    ([name, value]) => /^[a-z]/.test(name) && typeof value === 'function',
  )
  expect(
    names('')
      .filter((name) => name !== undefined)
      .sort(),
  ).toEqual(exported.map(([name]) => name).sort())
})

function methodsOf(prototype: object): string[] {
  const descriptors = Object.entries(Object.getOwnPropertyDescriptors(prototype))
  return descriptors.flatMap(([name, { value }]) => (typeof value === 'function' && name !== 'constructor' ? [name] : []))
}

test('[G2] every table of options belongs to a call of the reference', async () => {
  const source = join(root, 'packages', 'pawl', 'src')
  const files = readdirSync(source, { recursive: true, encoding: 'utf8' }).filter(
    (file) => file.endsWith('.ts') && !/\.test\.ts$|keeper-thread|keeper.thread\.ts/.test(file),
  )
  const modules = await Promise.all(files.map(async (file) => (await import(join(source, file))) as Record<string, unknown>))
  const found = new Map<unknown, string>()
  for (const module of modules)
    for (const [name, value] of Object.entries(module))
      if (/^(?!error).*Table$/.test(name) && typeof value === 'object') found.set(value, name)
  expect(found.size).toBeGreaterThan(30)
  const known = new Set(Object.values(all).flatMap((table) => [table, ...rowsOf(table).flatMap(({ option }) => inside(option))]))
  // The options that all cursors have are spread into three tables.
  expect([...found].filter(([table]) => !known.has(table as Table)).map(([, name]) => name)).toEqual(['cursorTable'])
})

function inside({ table, item }: { readonly table?: Table; readonly item?: { readonly table?: Table } }): Table[] {
  return [table, item?.table].filter((each) => each !== undefined)
}

test('[G2] every option has one line with its effect and its range', () => {
  for (const [call, table] of Object.entries(all)) {
    for (const { path, option } of rowsOf(table)) {
      expect(option.doc, `${call} ${path}`).toMatch(/^\S.{3,118}[.?]$/)
      expect(option.expects, `${call} ${path}`).toMatch(/^\S.*[^.]$/)
    }
  }
})

test('[G2] a wrong value is refused with its option, range and value', () => {
  for (const [call, table] of Object.entries(all)) {
    for (const [name, option] of Object.entries(table)) {
      // No option is a symbol.
      const wrong = Symbol('wrong')
      const refusal = `${call}: ${name} must be ${option.expects}`
      const given = { ...requiredOf(table), [name]: wrong }
      expect(() => resolve(call, table, given), `${call} ${name}`).toThrow(
        expect.objectContaining({ code: 'PAWL_CONFIG', message: expect.stringContaining(refusal) }),
      )
      for (const inner of Object.keys(option.table ?? {}))
        expect(
          () => resolve(call, table, { ...requiredOf(table), [name]: { [inner]: wrong } }),
          `${call} ${name}.${inner}`,
        ).toThrow(`${call}: ${name}.${inner} must be ${option.table![inner]!.expects}, got `)
    }
  }
})

/** A value of each option that cannot be left out. */
function requiredOf(table: Table): object {
  const samples: readonly unknown[] = ['csv', 'text', 1, () => undefined, ['a'], { a: 'text' }]
  const required = Object.entries(table).filter(([, option]) => option.isRequired)
  return Object.fromEntries(
    required.map(([name, option]) => {
      const isNested = (option.table ?? option.item?.table) !== undefined
      return [name, isNested ? {} : samples.find((sample) => option.accepts(sample))]
    }),
  )
}

/** Each call of the reference with these options, and nothing else wrong. */
function callsWith(pawl: Pawl, given: object): Readonly<Record<string, () => unknown>> {
  const options = given as never
  const scope = pawl.records.in('loads', { organisation: '1', registration: '2' })
  const { batches, documents, events, jobs, projections, records } = pawl
  const event = { type: 'Added', aggregateType: 'wallet', key: 'a' }
  const kind = { name: 'declared', queue: 'default' }
  const nil = '00000000-0000-4000-8000-000000000000'
  return {
    'createPawl(options)': () => createPawl({ databaseUrl: nowhere, ...given }),
    'pawl.alerts(options)': () => pawl.alerts(options),
    'once(tx, options, work)': () => once({ query: async () => ({ rows: [] }) }, options, () => 1),
    'pawl.worker(options)': () => pawl.worker(options),
    'worker.stop(options)': () => pawl.worker().stop(options),
    'pawl.jobs.define(kind, options)': () => jobs.define('other', options),
    'pawl.jobs.handle(kind, options)': () => jobs.handle(kind, options),
    'pawl.jobs.enqueue(kind, payload, options)': () => jobs.enqueue('mail', {}, options),
    'pawl.jobs.enqueueMany(kind, payloads, options)': () => jobs.enqueueMany('mail', [{}], options),
    'pawl.jobs.list(options)': () => jobs.list(options),
    'pawl.jobs.retry(id, options)': () => jobs.retry('1', options),
    'pawl.jobs.cancel(id, options)': () => jobs.cancel('1', options),
    'pawl.events.append(events, options)': () => events.append(event, options),
    'pawl.events.ingest(events, options)': () => events.ingest({ ...event, id: '1' }, options),
    'pawl.events.erase(options)': () => events.erase(options),
    'pawl.events.whoHoldsBack(options)': () => events.whoHoldsBack(options),
    'pawl.events.retain(options)': () => events.retain(options),
    'pawl.projections.define(name, options)': () => projections.define('p', options),
    "pawl.projections.define(name, { kind: 'state', ...options })": () =>
      projections.define('p', { kind: 'state', ...given } as never),
    'pawl.projections.react(name, options)': () => projections.react('p', options),
    'pawl.projections.sink(name, options)': () => projections.sink('p', options),
    'pawl.projections.seen(name, token, options)': () => projections.seen('p', '5:1', options),
    'pawl.projections.parked(name, options)': () => projections.parked('p', options),
    'pawl.projections.pause(name, options)': () => projections.pause('p', options),
    'pawl.projections.resume(name, options)': () => projections.resume('p', options),
    'pawl.projections.skip(name, options)': () => projections.skip('p', options),
    'pawl.projections.unpark(name, options)': () => projections.unpark('p', options),
    'pawl.projections.forget(name, options)': () => projections.forget('p', options),
    'pawl.projections.rebuild(name, options)': () => projections.rebuild('p', options),
    'pawl.projections.compare(name, options)': () => projections.compare('p', options),
    'pawl.projections.switchTo(name, options)': () => projections.switchTo('p', options),
    'pawl.projections.rollBack(name, options)': () => projections.rollBack('p', options),
    'pawl.projections.retire(name, options)': () => projections.retire('p', options),
    'pawl.batches.define(name, options)': () => batches.define('b', { item: { run: () => undefined }, ...given } as never),
    'pawl.batches.handle(batch, handlers)': () =>
      batches.handle(batches.define('h'), { item: { run: () => undefined }, ...given } as never),
    'pawl.batches.start(batch, items, options)': () => batches.start('b', [], options),
    'pawl.batches.items(id, options)': () => batches.items('1', options),
    'pawl.batches.list(options)': () => batches.list(options),
    'pawl.batches.stuck(options)': () => batches.stuck(options),
    'pawl.batches.cancel(id, options)': () => batches.cancel('1', options),
    'pawl.batches.extend(id, options)': () => batches.extend('1', options),
    'pawl.batches.rerun(id, options)': () => batches.rerun('1', options),
    'pawl.documents.define(type, options)': () => documents.define('d', { identity: ['a'], ...given } as never),
    'pawl.documents.post(type, body, options)': () => documents.post('d', {}, options),
    'pawl.documents.put(type, uuid, body, options)': () => documents.put('d', nil, {}, options),
    'pawl.documents.postMany(type, bodies, options)': () => documents.postMany('d', [], options),
    'pawl.documents.putAll(changes, options)': () => documents.putAll([], options),
    'pawl.documents.delete(type, uuid, options)': () => documents.delete('d', nil, options),
    'pawl.documents.get(type, uuidOrKey, options)': () => documents.get('d', nil, options),
    'pawl.documents.list(type, options)': () => documents.list('d', options),
    'pawl.documents.referrers(type, uuid, options)': () => documents.referrers('d', nil, options),
    'pawl.documents.verify(options)': () => documents.verify(options),
    'pawl.records.define(name, options)': () => records.define('other', options),
    'pawl.records.submissions(set, options)': () => records.submissions('loads', options),
    'pawl.records.rows(id, kind, options)': () => records.rows('1', 'created', options),
    'pawl.records.errors(id, options)': () => records.errors('1', options),
    'pawl.records.cancel(id, options)': () => records.cancel('1', options),
    'pawl.records.submit(id, options)': () => records.submit('1', options),
    'pawl.records.resume(id, options)': () => records.resume('1', options),
    'pawl.records.ended(id, options)': () => records.ended('1', options),
    'scope.upload(body, options)': () => scope.upload(['rowId\n1\n'], options),
    'scope.submissions(options)': () => scope.submissions(options),
    'scope.put(row, options)': () => scope.put({ data: { rowId: '1' } }, options),
    'scope.append(rows, options)': () => scope.append([{ data: { rowId: '1' } }], options),
    'scope.list(options)': () => scope.list(options),
    'scope.history(type, key, options)': () => scope.history('load', '1', options),
    'scope.export(options)': () => scope.export(options),
    'scope.erase(type, key, options)': () => scope.erase('load', '1', options),
    'xlsx(options)': () => xlsx(options),
    'runAll(pawl, options)': () => testing.runAll(pawl, options),
  }
}

test('[G2] every call refuses an unknown option before it runs a statement', async () => {
  const pawl = pawlOfNowhere()
  pawl.jobs.define('mail', { run: () => undefined })
  pawl.jobs.define('declared')
  pawl.projections.sink('known', { handle: () => undefined })
  defineLoads(pawl)
  const made = callsWith(pawl, { notAnOption: 1 })
  expect(Object.keys(made)).toEqual(Object.keys(all))
  for (const [name, call] of Object.entries(made)) {
    const refusal = {
      code: 'PAWL_CONFIG',
      message: expect.stringMatching(/has no option 'notAnOption'. (Its options are |Did you)/),
    }
    await expect((async () => call())(), name).rejects.toMatchObject(refusal)
  }
})

// An options object is a table: what each option must be, its default, one line of doc. The call checks what it was given against its
// table and gets every value filled in. The tables are plain data, so that a reference can be written from them.

import { isDate } from 'node:util/types'
import type { AnyTx } from '../db/adapters.ts'
import { isPlain, PawlError, shown, storable } from '../errors.ts'
import { durationMs, durationText, isDuration } from './clock.ts'

export interface Option<Value> {
  /** Completes "<name> must be ...", such as 'an integer from 1 to 500'. */
  readonly expects: string
  readonly doc: string
  /** As a user would write it. */
  readonly default?: unknown
  /** What holds when it is left out, where that is not one value. */
  readonly otherwise?: string
  readonly isRequired?: boolean
  /** undefined is no way to leave it out: a variable that was never set would change what the call does. */
  readonly isNeverUndefined?: boolean
  /** Its value is not shown in errors. */
  readonly isSecret?: boolean
  /** The options of an option that is itself an object of options. */
  readonly table?: Table
  /** What each item of a list, or each value of an object with any names, must be. */
  readonly item?: Option<unknown>
  accepts(given: unknown): boolean
  /** The value as the code uses it, where that is not as it was given. */
  readonly convert?: (given: never) => Value
  /** The full form of a value that may be given in short. */
  readonly expand?: (given: unknown) => unknown
}

export type Table = Readonly<Record<string, Option<unknown>>>

/** A table with exactly the options of an interface: `const listTable = {...} satisfies TableOf<ListOptions>`. */
export type TableOf<Given> = { readonly [Name in keyof Required<Given>]: Option<unknown> }

export type Resolved<T> = { readonly [Name in keyof T]: T[Name] extends Option<infer Value> ? Value : never }

/** Checks what a call was given and fills in the defaults. Throws PAWL_CONFIG with the option, the value and what it must be. */
export function resolve<T extends Table>(call: string, table: T, given: unknown): Resolved<T> {
  return readTable(call, table, given, '') as Resolved<T>
}

/** The same for a single argument of a call. */
export function check<Value>(call: string, name: string, option: Option<Value>, given: unknown): Value {
  return readOption(call, option, given, name) as Value
}

/** What the table cannot say, such as two options that exclude each other: "enqueue: give delay or runAt, not both." */
export function refused(call: string, problem: string, details: Readonly<Record<string, unknown>> = {}): PawlError {
  return new PawlError('PAWL_CONFIG', `${call}: ${problem}.`, { details: { call, ...details } })
}

// ---- what an option may be

interface Spec<Default> {
  readonly doc: string
  readonly default?: Default
  readonly otherwise?: string
}

type Filled<Value, Default> = Default extends undefined ? Value | undefined : Value

/** Any other option, by what it accepts. */
export function option<Value, Default = undefined>(
  expects: string,
  spec: Spec<Default>,
  accepts: (given: unknown) => boolean,
): Option<Filled<Value, Default>> {
  return { expects, ...spec, accepts }
}

export function required<Value>(optional: Option<Value>): Option<NonNullable<Value>> {
  return { ...optional, isRequired: true } as Option<NonNullable<Value>>
}

interface Range {
  readonly from: number
  readonly to: number
}

export function integer<D extends number | undefined = undefined>(spec: Spec<D> & Range): Option<Filled<number, D>> {
  return option(
    `an integer from ${spec.from} to ${spec.to}`,
    spec,
    (given) => Number.isInteger(given) && isIn(spec, given as number),
  )
}

export function number<D extends number | undefined = undefined>(spec: Spec<D> & Range): Option<Filled<number, D>> {
  return option(`a number from ${spec.from} to ${spec.to}`, spec, (given) => typeof given === 'number' && isIn(spec, given))
}

export function boolean<D extends boolean | undefined = undefined>(spec: Spec<D>): Option<Filled<boolean, D>> {
  return option('true or false', spec, (given) => typeof given === 'boolean')
}

/** A string that PostgreSQL can store, counted in its characters. */
export function text<D extends string | undefined = undefined>(
  spec: Spec<D> & { readonly from?: number; readonly to: number },
): Option<Filled<string, D>> {
  const { from = 1, to } = spec
  const accepts = (given: unknown) =>
    typeof given === 'string' && isStorable(given) && given.length >= from && charactersOf(given, to) <= to
  return option(`a string of ${from} to ${to} characters (valid Unicode, no NUL)`, spec, accepts)
}

/** A string that is only compared, or checked elsewhere. */
export function anyText(doc: string, otherwise?: string): Option<string | undefined> {
  const spec = otherwise === undefined ? { doc } : { doc, otherwise }
  return option('a string', spec, (given) => typeof given === 'string')
}

export function oneOf<const Value extends string, D extends Value | undefined = undefined>(
  values: readonly Value[],
  spec: Spec<D>,
): Option<Filled<Value, D>> {
  return option(`one of ${quoted(values)}`, spec, (given) => values.includes(given as Value))
}

/** Its value is in milliseconds. */
export function duration<D extends number | string | undefined = undefined>(spec: Spec<D> & Range): Option<Filled<number, D>> {
  const expects = `a duration from ${durationText(spec.from)} to ${durationText(spec.to)}: milliseconds, or a string such as '250ms', '5s', '15m', '2h', '7d'`
  const convert = (given: number | string) => Math.round(durationMs(given))
  return { ...option(expects, spec, (given) => isDuration(given) && isIn(spec, convert(given))), convert } as Option<
    Filled<number, D>
  >
}

/** A string is refused: without an offset it would mean another moment on another machine. */
export function time(spec: Spec<undefined>): Option<Date | undefined> {
  const expects = "a valid Date of the years 1 to 9999, such as new Date('2030-01-01T00:00:00Z')"
  // PostgreSQL reads neither year 0 nor the signed years that come before it and after 9999.
  return option(
    expects,
    spec,
    (given) => isDate(given) && !Number.isNaN(given.getTime()) && /^(?!0000)\d/.test(given.toISOString()),
  )
}

export function callback<F extends (...args: never[]) => unknown>(spec: Spec<undefined>): Option<F | undefined> {
  return option('a function', spec, (given) => typeof given === 'function')
}

export function signal(spec: Spec<undefined>): Option<AbortSignal | undefined> {
  const isSignal = (given: Partial<AbortSignal>) =>
    typeof given.aborted === 'boolean' && typeof given.addEventListener === 'function'
  return option('an AbortSignal', spec, (given) => isObject(given) && isSignal(given))
}

export function record(spec: Spec<undefined>): Option<Readonly<Record<string, unknown>> | undefined> {
  return option('an object', spec, isPlainObject)
}

export function transaction(spec: Spec<undefined>): Option<AnyTx | undefined> {
  const expects = "your transaction, or be left out for one of Pawl's own"
  return {
    ...option(expects, spec, (given) => isObject(given) || typeof given === 'function'),
    isNeverUndefined: true,
  } as Option<AnyTx | undefined>
}

/** Kept with an act for a person who asks later; blanks are none. */
export function reason(doc: string): Option<string> {
  const accepts = (given: unknown) =>
    typeof given === 'string' && isStorable(given) && given.trim() !== '' && charactersOf(given, 2000) <= 2000
  return required(option<string>('a string of 1 to 2000 characters, not only spaces', { doc }, accepts))
}

export function list<Value>(item: Option<Value>, spec: Spec<undefined>): Option<readonly NonNullable<Value>[] | undefined> {
  return { ...option<readonly NonNullable<Value>[]>('an array', spec, Array.isArray), item: required(item) }
}

/** An object whose names are the user's own. */
export function mapOf<Value>(
  item: Option<Value>,
  spec: Spec<undefined> & { readonly expects: string },
): Option<Readonly<Record<string, NonNullable<Value>>> | undefined> {
  return { ...spec, accepts: isPlainObject, item: required(item) }
}

/** An object of options within one. Its defaults hold also when all of it is left out. */
export function nested<T extends Table>(table: T, spec: Spec<undefined>): Option<Resolved<T>> {
  return { expects: 'an object', ...spec, accepts: isPlainObject, table }
}

/** What few users ever set, apart from what all of them read. */
export function tuning<T extends Table>(table: T): Option<Resolved<T>> {
  return nested(table, { doc: 'Settings that are rarely needed.' })
}

/** The same options with other defaults. */
export function withDefaults<T extends Table>(table: T, defaults: { readonly [Name in keyof T]?: unknown }): T {
  const rows = Object.entries(defaults).map(([name, value]) => [name, { ...table[name]!, default: value }])
  return { ...table, ...Object.fromEntries(rows) } as T
}

// ---- options of more than one call

export interface InTx {
  /** Your own transaction: what the call writes exists if and only if it commits. */
  readonly tx?: AnyTx
}

export interface InTxWaking extends InTx {
  /** false: send no notification; others find out within seconds. Required before PREPARE TRANSACTION. */
  readonly wake?: boolean
}

export interface WaitOptions {
  readonly timeout?: number | string
  readonly signal?: AbortSignal
}

export const ownTx = transaction({ doc: 'Your own transaction.' })
export const wake = boolean({ default: true, doc: 'false: send no notification. Required before PREPARE TRANSACTION.' })

// ---- checking

function readTable(call: string, table: Table, given: unknown, prefix: string): Readonly<Record<string, unknown>> {
  if (!isPlainObject(given)) throw noObject(call, table, given, prefix)
  for (const name of Object.keys(given)) {
    if (!Object.hasOwn(table, name)) throw noOption(call, table, name, prefix, given)
    if (given[name] === undefined && table[name]!.isNeverUndefined) throw wrong(call, prefix + name, table[name]!, undefined)
  }
  const values: Record<string, unknown> = {}
  for (const name of Object.keys(table)) {
    const value = readOption(call, table[name]!, given[name], prefix + name)
    if (value !== undefined) values[name] = value
  }
  return values
}

function readOption(call: string, row: Option<unknown>, given: unknown, path: string): unknown {
  const full = row.expand === undefined ? given : row.expand(given)
  if (row.table !== undefined) return readTable(call, row.table, full === undefined ? {} : full, `${path}.`)
  const value = full === undefined ? row.default : full
  if (value === undefined && !row.isRequired) return undefined
  if (!row.accepts(value)) throw wrong(call, path, row, given)
  if (row.item !== undefined) return readItems(call, row.item, value as object, path)
  return row.convert === undefined ? value : row.convert(value as never)
}

function readItems(call: string, item: Option<unknown>, given: object, path: string): unknown {
  if (Array.isArray(given)) return given.map((each, index) => readOption(call, item, each, `${path}[${index}]`))
  return Object.fromEntries(Object.entries(given).map(([name, each]) => [name, readOption(call, item, each, `${path}.${name}`)]))
}

function wrong(call: string, path: string, row: Option<unknown>, given: unknown): PawlError {
  const got = row.isSecret ? shownSecret(given) : shown(given)
  return refused(call, `${path} must be ${row.expects}, got ${got}`, { option: path })
}

/** How it begins, if it is a URL of another kind; else no more than its length. */
function shownSecret(given: unknown): string {
  if (typeof given !== 'string' || given === '') return shown(given)
  const [scheme] = /^[a-z]{1,20}:\/\//i.exec(given) ?? []
  const what = scheme === undefined ? `of ${given.length} characters` : `that begins with '${scheme}'`
  return `a string ${what} (not shown: it may contain a password)`
}

function noObject(call: string, table: Table, given: unknown, prefix: string): PawlError {
  const needed = Object.keys(table).filter((name) => table[name]!.isRequired)
  const what = prefix === '' ? 'options' : prefix.slice(0, -1)
  // A string in the place of the options may be the secret itself: createPawl(url).
  const got = typeof given === 'string' && Object.values(table).some(({ isSecret }) => isSecret) ? 'a string' : shown(given)
  const plain = isObject(given) ? 'a plain object' : 'an object'
  const fix = isClient(table, given) ? '. Pass a client as { tx }' : ''
  return refused(call, `${what} must be ${plain}${needed.length > 0 ? ` with ${needed.join(', ')}` : ''}, got ${got}${fix}`)
}

function noOption(call: string, table: object, name: string, prefix: string, given: object): PawlError {
  const names = Object.keys(table)
  const parent = names.find((each) => Object.hasOwn((table as Table)[each]!.table ?? {}, name))
  const near = parent === undefined ? nearest(name, names) : `${parent}.${name}`
  const known = names.map((each) => prefix + each).join(', ')
  const guess = near === undefined ? `Its options are ${known}.` : `Did you mean '${prefix}${near}'?`
  const fix = isClient(table, given) ? 'The options are a client: pass it as { tx }.' : guess
  const shownName = storable(prefix + name).slice(0, 100)
  return new PawlError('PAWL_CONFIG', `${call} has no option '${shownName}'. ${fix}`, { details: { call, option: shownName } })
}

function isClient(table: object, given: unknown): boolean {
  return 'tx' in table && isObject(given) && typeof given.query === 'function'
}

/** An instance of a class, such as a Map or a promise, may hold what was meant where its own fields do not show it. */
function isPlainObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return isObject(value) && isPlain(value)
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function isIn({ from, to }: Range, value: number): boolean {
  return value >= from && value <= to
}

function quoted(values: readonly string[]): string {
  return values.map((each) => `'${each}'`).join(', ')
}

function isStorable(value: string): boolean {
  return value.isWellFormed() && !value.includes('\u0000')
}

/** As PostgreSQL counts them. Code units are at least as many, so few of them need no counting. */
function charactersOf(value: string, enough: number): number {
  return value.length <= enough ? value.length : [...value].length
}

/** The name that was probably meant: at most a third of its letters differ, or it has the other in it, as maxAttempts has attempts. */
function nearest(given: string, names: readonly string[]): string | undefined {
  const name = given.toLowerCase()
  const [best] = names
    .map((each) => ({ each, lower: each.toLowerCase(), letters: distance(each.toLowerCase(), name) }))
    .filter(
      ({ lower, letters }) =>
        letters <= Math.max(lower.length, name.length) / 3 || (name.length > 2 && (lower.includes(name) || name.includes(lower))),
    )
    .sort((a, b) => a.letters - b.letters)
  return best?.each
}

/** Levenshtein's: the letters to insert, delete or replace. */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, index) => index)
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++) {
      next.push(Math.min(next[j - 1]! + 1, row[j]! + 1, row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1)))
    }
    row = next
  }
  return row[b.length]!
}

// ---- what has no table

/** An object whose names are only known at the call, such as a scope. */
export function assertKnown(call: string, given: object, names: ReadonlySet<string>): void {
  if (!isPlainObject(given)) throw noObject(call, {}, given, '')
  for (const name of Object.keys(given))
    if (!names.has(name)) throw noOption(call, Object.fromEntries([...names].map((each) => [each, {}])), name, '', given)
}

// A command as data: help, parsing, output and exit code follow from its row. A noun is a table of such rows.

import { InvalidArgumentError } from 'commander'
import type { ErrorCode } from 'pawl'
import type { Answer } from './answers.ts'
import type { DatabaseFlags } from './database.ts'
import { outputs, type Terminal } from './terminal.ts'

export interface Flag<T> {
  /** As commander takes it: '--limit <count>', '-y, --yes', '--no-demo'. Its key in the table is its name in camel case. */
  readonly syntax: string
  readonly doc: string
  readonly choices?: readonly string[]
  readonly read?: (given: string, before: unknown) => T
  readonly default?: T
  readonly isRequired?: boolean
  /** The environment variable that is used where the flag is not given. */
  readonly env?: string
}

export type Flags = Readonly<Record<string, Flag<unknown>>>

export type FlagValues<F extends Flags> = {
  readonly [Name in keyof F]: F[Name] extends Flag<infer T> ? T : never
}

export function text(syntax: string, doc: string): Flag<string | undefined> {
  return { syntax, doc }
}

/** Given more than once, it is a list. */
export function texts(syntax: string, doc: string): Flag<readonly string[] | undefined> {
  return { syntax, doc, read: (given, before) => [...((before as readonly string[] | undefined) ?? []), given] }
}

export function oneOf<T extends string>(syntax: string, choices: readonly T[], doc: string): Flag<T | undefined> {
  return { syntax, doc, choices }
}

export function integer(syntax: string, [min, max]: readonly [number, number], doc: string): Flag<number | undefined> {
  const read = (given: string): number => {
    const value = Number(given)
    if (given.trim() !== '' && Number.isInteger(value) && value >= min && value <= max) return value
    throw new InvalidArgumentError(`It must be an integer from ${min} to ${max}.`)
  }
  return { syntax, doc, read }
}

export function time(syntax: string, doc: string): Flag<Date | undefined> {
  const read = (given: string): Date => {
    const value = new Date(given)
    if (!Number.isNaN(value.getTime())) return value
    throw new InvalidArgumentError('It must be a time such as 2030-01-31T08:00:00Z.')
  }
  return { syntax, doc, read }
}

/** A flag without a value; '--no-x' is true unless given. */
export function toggle(syntax: string, doc: string): Flag<boolean> {
  return { syntax, doc, default: syntax.startsWith('--no-') }
}

export function required<T>(flag: Flag<T | undefined>): Flag<T> {
  return { ...(flag as Flag<T>), isRequired: true }
}

export function withDefault<T>(flag: Flag<T | undefined>, byDefault: T): Flag<T> {
  return { ...(flag as Flag<T>), default: byDefault }
}

/** The flags that every command has. */
export const globalFlags = {
  output: withDefault(oneOf('-o, --output <format>', outputs, 'output format'), 'table'),
  json: toggle('--json', 'the same as -o json'),
  databaseUrl: text('--database-url <url>', 'the database (or PAWL_DATABASE_URL, or DATABASE_URL)'),
  pooler: {
    ...oneOf(
      '--pooler <mode>',
      ['none', 'transaction'] as const,
      "'transaction' if that URL is of a pgbouncer in transaction mode",
    ),
    env: 'PAWL_POOLER',
  },
  directUrl: { ...text('--direct-url <url>', 'the same database without the pooler'), env: 'PAWL_DIRECT_URL' },
  tenant: text('--tenant <name>', 'act for this tenant'),
  color: toggle('--no-color', 'print no colours (or NO_COLOR); only a terminal gets them'),
  quiet: toggle('-q, --quiet', 'print only errors on stderr'),
  verbose: toggle('-v, --verbose', 'print errors with their stack'),
} satisfies Flags

export interface Context<F extends Flags = Flags> {
  readonly terminal: Terminal
  readonly flags: FlagValues<F>
  readonly database: DatabaseFlags
  readonly tenant: string | undefined
  /** Prints an error as the command would end with it, and returns its exit code. */
  readonly report: (error: unknown) => number
}

interface Named {
  readonly name: string
  readonly summary: string
  /** Each can be run as it stands. */
  readonly examples: readonly string[]
}

export interface Command<F extends Flags> extends Named {
  /** `['<id...>', 'job ids']`, with a default where the argument may be left out. */
  readonly args?: readonly (readonly [syntax: string, doc: string, byDefault?: string])[]
  readonly flags?: F
  /** Returns what to print, or prints by itself and returns its exit code. */
  readonly run: (context: Context<F>, ...args: never[]) => Promise<Answer | number>
}

export interface Noun extends Named {
  readonly verbs: readonly AnyCommand[]
  /** What to do next after an error, where this noun knows better than failure.ts. */
  readonly next?: Partial<Readonly<Record<ErrorCode, string>>>
}

/** A command whose flags are checked by its own row. */
export type AnyCommand = Omit<Command<Flags>, 'run'> & {
  readonly run: (context: never, ...args: never[]) => Promise<Answer | number>
}

export function command<F extends Flags = Record<never, never>>(row: Command<F>): AnyCommand {
  return row
}

/** The flags that were given, for options that must not be undefined. */
export function given<T extends object>(flags: T): { readonly [Name in keyof T]?: Exclude<T[Name], undefined> } {
  return Object.fromEntries(Object.entries(flags).filter(([, value]) => value !== undefined)) as never
}

// The answers of verbs: JSON for programs, a table or pairs for people. Lists are pages, and acts on several ids try each.

import type { Tenant } from 'pawl'
import { type Context, type Flag, type Flags, integer, text, withDefault } from './command.ts'
import { withPawl } from './database.ts'
import { exitCodes, failureOf, UsageError } from './failure.ts'
import type { Column, Terminal } from './terminal.ts'

export interface Answer {
  readonly json: unknown
  /** With -o jsonl each is a line of its own; without, the JSON is one line. */
  readonly lines?: readonly unknown[]
  readonly show: (terminal: Terminal) => void
  /** For people, on stderr. */
  readonly say?: readonly string[]
  readonly exit?: number
}

export function print(terminal: Terminal, { json, lines, show, say = [], exit = exitCodes.ok }: Answer): number {
  if (terminal.output === 'table') show(terminal)
  else if (terminal.output === 'jsonl' && lines !== undefined) for (const line of lines) terminal.json(line)
  else terminal.json(json)
  for (const text of say) terminal.say(text)
  return exit
}

const limitMax = 500

/** The flags of every list. */
export const pageFlags = {
  limit: withDefault(integer('--limit <count>', [1, limitMax], `how many to list, up to ${limitMax}`), 50),
  after: text('--after <next>', "list the next page: the 'next' of the previous one"),
}

/** The flag of every act that is kept in the audit. */
export const byFlag = text('--by <name>', 'the acting person, stored in the audit')

export interface Page<Item> {
  readonly items: readonly Item[]
  /** What --after takes for the next page; null on the last one. */
  readonly next: string | null
}

/** `empty` is said where a list has no item. */
export function pageAnswer<Item>({ items, next }: Page<Item>, columns: readonly Column<Item>[], empty: string): Answer {
  const say = items.length === 0 ? [empty] : next === null ? [] : [`There are more: --after ${next}`]
  return { json: { items, next }, lines: items, show: (terminal) => terminal.table(columns, items), say }
}

export function revisionFlag(noun: string): Flag<number | undefined> {
  return integer('--revision <number>', [1, 2 ** 31 - 1], `only if the ${noun} is still at this revision`)
}

/** Each id is tried; the first failure decides the exit code. */
export async function changeEach<Changed>(
  context: Omit<Context<Flags>, 'flags'> & { readonly flags: { readonly revision: number | undefined } },
  ids: readonly string[],
  { change, columns }: { change: (handle: Tenant, id: string) => Promise<Changed>; columns: readonly Column<Changed>[] },
): Promise<Answer> {
  if (context.flags.revision !== undefined && ids.length > 1)
    throw new UsageError(`--revision needs exactly one id, got ${ids.length}.`, 'change one at a time')
  const items: Changed[] = []
  let exit: number = exitCodes.ok
  await withPawl(context, async (handle) => {
    for (const id of ids) {
      try {
        items.push(await change(handle, id))
      } catch (error) {
        const failure = failureOf(error)
        if (failure.exit === exitCodes.unavailable || failure.code === 'PAWL_SCHEMA_MISSING') throw error
        const code = context.report(error)
        if (exit === exitCodes.ok) exit = code
      }
    }
  })
  const shown = columns.filter(({ value }) => items.some((item) => value(item) !== ''))
  return { json: { items }, lines: items, show: (terminal) => terminal.table(shown, items), exit }
}

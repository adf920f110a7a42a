// SQL is kept as SQL: one statement a file, with :name parameters, so a file runs as pasted into psql. This loads such a file and gives
// each name its number. The name of the prepared statement follows from its text, so two releases on one pooled connection never clash.

import { createHash } from 'node:crypto'
import { readText } from './files.ts'

export interface Statement {
  readonly file: string
  readonly name: string
  readonly text: string
  readonly parameters: readonly string[]
}

export type Parameter = string | number | boolean | null

/** `statement(import.meta.url, 'claim')` is sql/claim.sql beside the calling module. */
export function statement(moduleUrl: string, file: string): Statement {
  const source = readText(new URL(`./sql/${file}.sql`, moduleUrl))
  const parameters: string[] = []
  const text = stripComments(source).replace(/(?<![:\w]):([a-z_]+)/g, (_match, name: string) => {
    if (!parameters.includes(name)) parameters.push(name)
    return `$${parameters.indexOf(name) + 1}`
  })
  const digest = createHash('sha256').update(text).digest('hex').slice(0, 12)
  return { file, name: `pawl_${file.replaceAll('-', '_')}_${digest}`, text, parameters }
}

export function bind(statement: Statement, values: Readonly<Record<string, Parameter>>): Parameter[] {
  return statement.parameters.map((name) => {
    const value = values[name]
    if (value === undefined) throw new Error(`${statement.file}.sql needs :${name}`)
    return value
  })
}

const usesBeforeName = 5
const namesMax = 100
const rememberedMax = 1000

/**
 * Names for the texts that handlers send again and again, so that the server parses and plans each once per connection: half the cost of a
 * small insert. A text gets one after some uses, and there are only so many, so texts that are made up anew each time stay unnamed.
 */
export class StatementNames {
  readonly #names = new Map<string, string>()
  readonly #uses = new Map<string, number>()
  #given = 0

  of(text: string): string | undefined {
    const name = this.#names.get(text)
    if (name !== undefined || this.#names.size >= namesMax) return name
    const uses = (this.#uses.get(text) ?? 0) + 1
    if (uses < usesBeforeName) {
      if (this.#uses.size >= rememberedMax) this.#uses.clear()
      this.#uses.set(text, uses)
      return undefined
    }
    this.#uses.delete(text)
    // Never the same twice: after a change of the schema the old name still stands for the old plan on other connections.
    const given = `pawl_handler_${++this.#given}`
    this.#names.set(text, given)
    return given
  }

  /** A plan was stale: every text is prepared anew. */
  forget(): void {
    this.#names.clear()
  }
}

function stripComments(source: string): string {
  return source.replace(/^\s*--.*$\n?/gm, '').trim()
}

/** A PostgreSQL array literal of numbers in text form: ids and fences. One text parameter costs far less than an array of them. */
export function numbersLiteral(values: readonly (string | number | null)[]): string {
  return `{${values.map((value) => value ?? 'null').join(',')}}`
}

/** A PostgreSQL array literal of any texts. */
export function textsLiteral(values: readonly (string | null)[]): string {
  return `{${values.map((value) => (value === null ? 'null' : `"${value.replace(/["\\]/g, '\\$&')}"`)).join(',')}}`
}

// SQL is kept as SQL: sql/<table>.sql has the statements of one table, each after a line `-- name: claim`, with :name parameters, so a statement
// runs as pasted into psql. The name of the prepared statement follows from its text, so two releases on one pooled connection never clash.

import { createHash } from 'node:crypto'
import { namesIn, readText } from './files.ts'

export interface Statement {
  readonly name: string
  /** Empty: never prepared under a name. */
  readonly preparedName: string
  readonly text: string
  readonly parameters: readonly string[]
  /** 'any': it names schemas and uses no operator, and what it calls fixes its search path. */
  readonly path: 'own' | 'any'
}

export type Parameter = string | number | boolean | null
export type Values = Readonly<Record<string, Parameter>>

/** `statement(import.meta.url, 'claim')` is the statement of that name in sql/ beside the calling module. */
export function statement(moduleUrl: string, name: string, path: Statement['path'] = 'own'): Statement {
  const source = sourcesIn(new URL('./sql/', moduleUrl)).get(name)
  if (source === undefined) throw new Error(`No statement '${name}' in sql/ beside ${moduleUrl}`)
  const parameters: string[] = []
  const text = stripComments(source).replace(/(?<![:\w]):([a-z_]+)/g, (_match, parameter: string) => {
    if (!parameters.includes(parameter)) parameters.push(parameter)
    return `$${parameters.indexOf(parameter) + 1}`
  })
  const digest = createHash('sha256').update(text).digest('hex').slice(0, 12)
  return { name, preparedName: `pawl_${name.replaceAll('-', '_')}_${digest}`, text, parameters, path }
}

const folders = new Map<string, ReadonlyMap<string, string>>()

/** The statements of a folder by name, each with its header. */
export function sourcesIn(folder: URL): ReadonlyMap<string, string> {
  const known = folders.get(folder.href)
  if (known !== undefined) return known
  const sources = new Map<string, string>()
  for (const file of namesIn(folder)) {
    for (const part of readText(new URL(file, folder))
      .split(/^-- name: /m)
      .slice(1)) {
      const end = part.indexOf('\n')
      const name = part.slice(0, end)
      if (sources.has(name)) throw new Error(`Two statements '${name}' in ${folder.href}`)
      sources.set(name, part.slice(end + 1).trimEnd())
    }
  }
  folders.set(folder.href, sources)
  return sources
}

export function bind(statement: Statement, values: Values): Parameter[] {
  return statement.parameters.map((name) => {
    const value = values[name]
    if (value === undefined) throw new Error(`The statement ${statement.name} needs :${name}`)
    return value
  })
}

const usesBeforeName = 5
const namesMax = 100
const rememberedMax = 1000

/**
 * The names under which a pool's sessions prepare: our statements, and the strings that handlers send often, so that the server parses and
 * plans each once per session: half the cost of a small insert. A string gets a name at its fifth use, at most 100 of them do.
 */
export class StatementNames {
  readonly #names = new Map<string, string>()
  readonly #uses = new Map<string, number>()
  #given = 0
  #forgotten = 0

  prepared({ preparedName }: Statement): string {
    return this.#forgotten === 0 || preparedName === '' ? preparedName : `${preparedName}_${this.#forgotten}`
  }

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

  /** After a stale plan everything is prepared under new names: other sessions still have the old plans under the old ones. */
  forget(): void {
    this.#names.clear()
    this.#forgotten++
  }
}

function stripComments(source: string): string {
  return source.replace(/^\s*--.*$\n?/gm, '').trim()
}

/** A PostgreSQL array literal of numbers as strings: ids and fences. One string parameter costs far less than an array of them. */
export function numbersLiteral(values: readonly (string | number | null)[]): string {
  return `{${values.map((value) => value ?? 'null').join(',')}}`
}

/** A PostgreSQL array literal of any strings. */
export function textsLiteral(values: readonly (string | null)[]): string {
  return `{${values.map((value) => (value === null ? 'null' : `"${value.replace(/["\\]/g, '\\$&')}"`)).join(',')}}`
}

// A page of the documentation as a test reads it: files and commands by the names in the comments before their blocks.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { root } from './phase.ts'

export interface Page {
  /** By their paths. */
  readonly files: ReadonlyMap<string, string>
  /** Blocks of commands, by name. */
  readonly shell: ReadonlyMap<string, string>
  /** Blocks of SQL, by name. */
  readonly sql: ReadonlyMap<string, string>
  /** Blocks that no test would see. */
  readonly unnamed: readonly string[]
}

const blockPattern = /(?:<!-- (file|shell|sql): (\S+) -->\n)?```(\w+)\n([\s\S]*?)```/g

export function readPage(path: string): Page {
  const named = { file: new Map<string, string>(), shell: new Map<string, string>(), sql: new Map<string, string>() }
  const unnamed: string[] = []
  for (const [, what, name, , text] of readFileSync(join(root, path), 'utf8').matchAll(blockPattern)) {
    if (name === undefined) unnamed.push(text!)
    else named[what as keyof typeof named].set(name, text!)
  }
  return { files: named.file, shell: named.shell, sql: named.sql, unnamed }
}

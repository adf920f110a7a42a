// An esbuild plugin for what runs without the sources beside it: SQL, migrations and the released schema are put inside the code, and the
// keeper's thread is started from JavaScript. The build uses it, and so do the processes that tests start.

import { readFileSync } from 'node:fs'
import { join, relative, sep } from 'node:path'
import type { Plugin } from 'esbuild'
import { root } from './phase.ts'
import { filesUnder } from './results.ts'

const library = join(root, 'packages', 'pawl')

/** `newThread`: the module that starts the keeper's thread, in place of src/new-thread.ts. `which`: only these files. */
export function inlined(newThread: string, which = /./): Plugin {
  const instead = new Map([
    ['src/db/files.ts', filesModule(which)],
    ['src/new-thread.ts', newThread],
  ])
  return {
    name: 'inlined',
    setup(hooks) {
      hooks.onLoad({ filter: /packages[\\/]pawl[\\/]src[\\/].*\.ts$/ }, ({ path }) => {
        const contents = instead.get(pathOf(path)) ?? readFileSync(path, 'utf8')
        return { contents: contents.replaceAll('import.meta.url', JSON.stringify(addressOf(path))), loader: 'ts' }
      })
    },
  }
}

function pathOf(file: string): string {
  return relative(library, file).split(sep).join('/')
}

/** Where a module believes it is: the same for every build, so that it finds its files by it. */
function addressOf(file: string): string {
  return `file:///pawl/${pathOf(file)}`
}

function filesModule(which: RegExp): string {
  const files = [
    ...[...filesUnder(join(library, 'src'))].filter((file) => file.endsWith('.sql')),
    ...filesUnder(join(library, 'migrations')),
    join(library, 'schema.json'),
  ]
  const taken = files.filter((file) => which.test(pathOf(file))).sort()
  const texts = Object.fromEntries(taken.map((file) => [addressOf(file), textOf(file)]))
  return `const texts: Record<string, string> = ${JSON.stringify(texts, null, 2)}
export function readText(file: URL): string {
  const text = texts[file.href]
  if (text === undefined) throw new Error('This build has no file ' + file.href)
  return text
}
export function namesIn(folder: URL): string[] {
  return Object.keys(texts).filter((name) => name.startsWith(folder.href)).map((name) => name.slice(folder.href.length))
}
`
}

/** The schema is read by programs only. */
function textOf(file: string): string {
  const text = readFileSync(file, 'utf8')
  return file.endsWith('.json') ? JSON.stringify(JSON.parse(text)) : text
}

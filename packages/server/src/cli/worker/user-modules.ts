// Loads modules of the user. Each exports its Pawl (`export const pawl = createPawl(...)`), or a function that defines kinds on one of ours
// (`export default (pawl) => { pawl.jobs.define(...) }`).

import { createRequire } from 'node:module'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import type { Pawl } from 'pawl'
import { UsageError } from '../failure.ts'

type Define = (pawl: Pawl) => unknown

export interface LoadedModules {
  /** The Pawl that the modules export; undefined when they want one of ours. */
  readonly theirs: Pawl | undefined
  /** Has the modules that export functions define their kinds. */
  define(pawl: Pawl): Promise<void>
}

export async function loadModules(paths: readonly string[]): Promise<LoadedModules> {
  const functions: Define[] = []
  const pawls = new Map<Pawl, string>()
  for (const path of paths) {
    const { pawl, define } = pick(path, await load(path))
    if (pawl !== undefined && !pawls.has(pawl)) pawls.set(pawl, path)
    if (define !== undefined) functions.push(define)
  }
  const [theirs, ...others] = pawls.keys()
  if (others.length > 0) throw new UsageError(`${[...pawls.values()].join(' and ')} export different Pawls.`, twoPawls)
  return {
    theirs,
    define: async (pawl) => {
      for (const define of functions) await define(pawl)
    },
  }
}

const twoPawls = 'use one Pawl per command: import it in both modules from a third, or start two workers'

async function load(path: string): Promise<Record<string, unknown>> {
  const url = pathToFileURL(resolve(path)).href
  // Before the first try: Node remembers that it could not load a module.
  if (/\.[cm]?tsx?$/.test(path) && !loadsTypeScript) loadsTypeScript = await registerTsx()
  try {
    return (await import(url)) as Record<string, unknown>
  } catch (error) {
    const code = (error as { code?: unknown }).code
    if (code === 'ERR_UNKNOWN_FILE_EXTENSION') {
      throw new UsageError(
        `Node ${process.versions.node} cannot load ${path}.`,
        'run npm install --save-dev tsx, or pass the compiled .js file',
      )
    }
    if (code === 'ERR_MODULE_NOT_FOUND' && (error as { url?: string }).url === url) {
      throw new UsageError(`The module ${path} does not exist.`, 'give the path of a file, such as ./jobs.ts')
    }
    throw error
  }
}

/** If this module runs as TypeScript, the loader of it loads other modules too. Newer releases of Node do so by themselves. */
let loadsTypeScript = import.meta.url.endsWith('.ts') || Boolean((process.features as { typescript?: string | false }).typescript)

/** The tsx of the user's own project, if it has one. */
async function registerTsx(): Promise<boolean> {
  try {
    // require() finds the CommonJS form; the ES module beside it is the one that can register its hooks.
    const api = createRequire(resolve('package.json'))
      .resolve('tsx/esm/api')
      .replace(/\.cjs$/, '.mjs')
    const { register } = (await import(pathToFileURL(api).href)) as { register: () => unknown }
    register()
    return true
  } catch {
    return false
  }
}

interface Picked {
  readonly pawl?: Pawl
  readonly define?: Define
}

/** A Pawl, under whatever name, or a default function. No other function is called: it may be meant for something else. */
function pick(path: string, loaded: Record<string, unknown>): Picked {
  const exported = exportsOf(loaded)
  const pawls = [...new Set(Object.values(exported).filter(isPawl))]
  const define = typeof exported.default === 'function' ? { define: exported.default as Define } : {}
  if (pawls.length > 1)
    throw new UsageError(`${path} exports ${pawls.length} Pawls.`, 'export only the one whose jobs should run')
  if (pawls[0] !== undefined) return { pawl: pawls[0], ...define }
  if (define.define !== undefined) return define
  const functions = Object.values(exported).filter((value) => typeof value === 'function')
  const found =
    functions.length === 0 ? 'exports neither a Pawl nor a function' : `exports ${functions.length} function(s) and no default`
  throw new UsageError(
    `${path} ${found}, so it is not clear which jobs to run.`,
    'export const pawl = createPawl(...), or export default (pawl) => { pawl.jobs.define(...) }',
  )
}

/** Of a CommonJS module the default export is all of `module.exports`, and a compiled ES module has its own default in there. */
function exportsOf(loaded: Record<string, unknown>): Record<string, unknown> {
  const whole = loaded.default
  if (typeof whole !== 'object' || whole === null || isPawl(whole)) return loaded
  const { default: _all, ...named } = loaded
  return { ...named, ...(whole as Record<string, unknown>) }
}

/** By its shape: a bundle has a copy of Pawl of its own. */
function isPawl(value: unknown): value is Pawl {
  const pawl = value as Partial<Pawl> | null
  if (typeof pawl !== 'object' || pawl === null) return false
  return typeof pawl.worker === 'function' && typeof pawl.migrate === 'function' && typeof pawl.close === 'function'
}

// Loads modules of the user that define kinds: `export default (pawl) => { pawl.jobs.define(...) }`.

import { createRequire } from 'node:module'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import type { Pawl } from 'pawl'
import { UsageError } from './failure.ts'

type Define = (pawl: Pawl) => unknown

export async function defineFrom(pawl: Pawl, paths: readonly string[]): Promise<void> {
  for (const path of paths) {
    const define = pick(path, await load(path))
    await define(pawl)
  }
}

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
        `This Node (${process.versions.node}) cannot load ${path} as it is.`,
        'npm install --save-dev tsx, or name the compiled .js file',
      )
    }
    if (code === 'ERR_MODULE_NOT_FOUND' && (error as { url?: string }).url === url) {
      throw new UsageError(`There is no module ${path}.`, 'give the path of a file, such as ./jobs.ts')
    }
    throw error
  }
}

/** This very module may be TypeScript; then whoever loaded it loads others too. Newer releases of Node do so by themselves. */
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

function pick(path: string, loaded: Record<string, unknown>): Define {
  if (typeof loaded.default === 'function') return loaded.default as Define
  const functions = Object.values(loaded).filter((value) => typeof value === 'function')
  if (functions.length === 1) return functions[0] as Define
  const found = functions.length === 0 ? 'exports no function' : `exports ${functions.length} functions and no default`
  throw new UsageError(
    `${path} ${found}, so it is not clear what defines its kinds.`,
    'export default (pawl) => { pawl.jobs.define(...) }',
  )
}

// Compiles the processes under test once per run. A test run starts hundreds of them, and compiling in each would cost more than what they
// do; and all of them run what was there at the start, their SQL included, whoever edits the sources meanwhile.

import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { dirname, join, relative, sep } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { build, type Plugin } from 'esbuild'

const root = fileURLToPath(new URL('../../../../', import.meta.url))
const source = join(root, 'packages', 'pawl', 'src')

export interface BuiltPrograms {
  fileOf(role: string): string
  remove(): void
}

/** Each under its role, and beside them the keeper's thread as `keeper-thread`. */
export async function buildPrograms(programs: Readonly<Record<string, URL>>): Promise<BuiltPrograms> {
  // Below the repository, so that packages are found from there.
  const outdir = join(root, '.pawl', 'programs', `${process.pid}-${Date.now()}`)
  mkdirSync(outdir, { recursive: true })
  copySql(outdir)
  await build({
    entryPoints: {
      ...Object.fromEntries(Object.entries(programs).map(([role, file]) => [role, fileURLToPath(file)])),
      'keeper-thread': join(source, 'keeper-thread.ts'),
    },
    outdir,
    bundle: true,
    // One instance of each module per thread, whichever entry asks for it: the probes are a module's state.
    splitting: true,
    format: 'esm',
    platform: 'node',
    target: 'node20',
    conditions: ['@pawl/source'],
    external: ['pg', 'saxes', 'yauzl'],
    logLevel: 'error',
    plugins: [keepAddresses(outdir)],
  })
  return { fileOf: (role) => join(outdir, `${role}.js`), remove: () => rmSync(outdir, { recursive: true, force: true }) }
}

/** Beside where each product module is told to be. */
function copySql(outdir: string): void {
  for (const file of readdirSync(source, { recursive: true, encoding: 'utf8' })) {
    if (file.endsWith('.sql')) cpSync(join(source, file), join(outdir, 'src', file))
  }
  cpSync(join(dirname(source), 'migrations'), join(outdir, 'migrations'), { recursive: true })
}

/** `import.meta.url` of a product module is its place in the copy, where its SQL is; the keeper's thread is the compiled one. */
function keepAddresses(outdir: string): Plugin {
  const newThread = `import { Worker } from 'node:worker_threads'
    export const newThread = (options) => new Worker(${JSON.stringify(join(outdir, 'keeper-thread.js'))}, options)`
  return {
    name: 'keep-addresses',
    setup(hooks) {
      hooks.onLoad({ filter: /packages[\\/]pawl[\\/]src[\\/].*\.ts$/ }, ({ path }) => {
        if (path.endsWith(`${sep}new-thread.ts`)) return { contents: newThread, loader: 'js' }
        const address = pathToFileURL(join(outdir, 'src', relative(source, path))).href
        return { contents: readFileSync(path, 'utf8').replaceAll('import.meta.url', JSON.stringify(address)), loader: 'ts' }
      })
    },
  }
}

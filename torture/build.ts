// Compiles the worker process once per run. A storm starts dozens of processes, and compiling in each of them would cost more than the
// storm itself. The SQL stays where it is: product modules keep the addresses of their sources.

import { mkdirSync, readFileSync, rmSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { build, type Plugin } from 'esbuild'

const here = dirname(fileURLToPath(import.meta.url))
const root = dirname(here)
const source = join(root, 'packages', 'pawl', 'src')

export interface BuiltChild {
  readonly main: string
  remove(): void
}

export async function buildChild(): Promise<BuiltChild> {
  // Below the repository, so that packages are found from there.
  const outdir = join(root, '.pawl', 'torture', `build-${process.pid}-${Date.now()}`)
  mkdirSync(outdir, { recursive: true })
  await build({
    entryPoints: {
      'worker-child': join(here, 'worker-child.ts'),
      'keeper-probe': join(here, 'keeper-probe.ts'),
      'keeper-thread': join(source, 'jobs', 'keeper-thread.ts'),
    },
    outdir,
    bundle: true,
    // One instance of each module per thread, whichever entry asks for it: the probes are a module's state.
    splitting: true,
    format: 'esm',
    platform: 'node',
    target: 'node20',
    conditions: ['source'],
    external: ['pg'],
    logLevel: 'error',
    plugins: [keepAddresses(outdir)],
  })
  return { main: join(outdir, 'worker-child.js'), remove: () => rmSync(outdir, { recursive: true, force: true }) }
}

/** `import.meta.url` of a product module stays its source's, for the SQL beside it; the keeper finds its compiled thread. */
function keepAddresses(outdir: string): Plugin {
  return {
    name: 'keep-addresses',
    setup(hooks) {
      hooks.onLoad({ filter: /packages[\\/]pawl[\\/]src[\\/].*\.ts$/ }, ({ path }) => {
        const address = path.endsWith(join('jobs', 'keeper.ts')) ? join(outdir, 'keeper.js') : path
        const contents = readFileSync(path, 'utf8').replaceAll('import.meta.url', JSON.stringify(pathToFileURL(address).href))
        return { contents, loader: 'ts' }
      })
    },
  }
}

// Compiles the keeper thread once for a whole test run. Its SQL stays where it is: every module keeps its own address.

import { readFileSync } from 'node:fs'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { build } from 'esbuild'

const root = new URL('../../../../', import.meta.url)

export async function compileKeeperThread(): Promise<string> {
  // Below the repository, so that packages are found from there.
  const outfile = fileURLToPath(new URL(`.pawl/test/keeper-thread-${process.pid}.js`, root))
  await build({
    entryPoints: [fileURLToPath(new URL('packages/pawl/src/jobs/keeper-thread.ts', root))],
    outfile,
    bundle: true,
    format: 'esm',
    platform: 'node',
    target: 'node20',
    conditions: ['source'],
    external: ['pg'],
    logLevel: 'error',
    plugins: [
      {
        name: 'keep-addresses',
        setup(hooks) {
          hooks.onLoad({ filter: /packages[\\/]pawl[\\/]src[\\/].*\.ts$/ }, ({ path }) => ({
            contents: readFileSync(path, 'utf8').replaceAll('import.meta.url', JSON.stringify(pathToFileURL(path).href)),
            loader: 'ts',
          }))
        },
      },
    ],
  })
  return outfile
}

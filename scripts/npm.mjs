// Runs npm in a folder of this repository with that folder's own .npmrc. It uses nothing but Node, because it runs before anything is installed.
import { spawnSync } from 'node:child_process'

/** Returns whether npm succeeded. */
export function npm(folder, npmArgs, output) {
  const path = process.env.npm_execpath
  // `npm run` hands its settings down as variables, which override the folder's .npmrc: bench/ switches engine-strict off.
  const { npm_config_engine_strict: _, ...env } = process.env
  const options = { cwd: folder, env, stdio: ['ignore', output, output] }
  const more = ['--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error']
  const done = path?.endsWith('.js')
    ? spawnSync(process.execPath, [path, ...npmArgs, ...more], options)
    : spawnSync('npm', [...npmArgs, ...more], { ...options, shell: process.platform === 'win32' })
  return done.status === 0
}

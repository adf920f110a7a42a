// Runs a TypeScript file of this repository on a fresh clone: installs the locked dependencies when they are missing or
// out of date, then starts the file. It uses nothing but Node, because it runs before anything is installed.
import { spawn, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const [file, ...args] = process.argv.slice(2)

const [major, minor] = process.versions.node.split('.').map(Number)
if (major < 20 || (major === 20 && minor < 19)) {
  console.error(
    `Pawl needs Node 20.19 or newer; this is ${process.versions.node}. Install a newer Node and run the command again.`,
  )
  process.exit(1)
}

/** One process installs; others that start meanwhile wait for it. A lock left by a killed process is taken over. */
async function withInstallLock(install) {
  const lock = join(root, 'node_modules', '.pawl-install-lock')
  mkdirSync(dirname(lock), { recursive: true })
  for (;;) {
    try {
      writeFileSync(lock, String(process.pid), { flag: 'wx' })
      break
    } catch (error) {
      if (error.code !== 'EEXIST') throw error
      if (isAbandoned(lock)) rmSync(lock, { force: true })
      else await new Promise((resolve) => setTimeout(resolve, 200))
    }
  }
  try {
    install()
  } finally {
    rmSync(lock, { force: true })
  }
}

function isAbandoned(lock) {
  try {
    const age = Date.now() - statSync(lock).mtimeMs
    process.kill(Number(readFileSync(lock, 'utf8')) || -1, 0)
    return age > 15 * 60_000
  } catch (error) {
    return error.code !== 'EPERM'
  }
}

export async function ensureInstalled(folder, name) {
  const wanted = createHash('sha256')
    .update(readFileSync(join(folder, 'package-lock.json')))
    .update(process.versions.modules)
    .digest('hex')
  const stamp = join(folder, 'node_modules', '.pawl-installed')
  const isInstalled = () => existsSync(stamp) && readFileSync(stamp, 'utf8') === wanted
  if (isInstalled()) return
  await withInstallLock(() => {
    if (isInstalled()) return
    console.error(`Installing the dependencies of ${name} (once) ...`)
    const npm = process.env.npm_execpath
    const install = ['ci', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error']
    const done = npm
      ? spawnSync(process.execPath, [npm, ...install], { cwd: folder, stdio: ['ignore', 2, 2] })
      : spawnSync('npm', install, { cwd: folder, stdio: ['ignore', 2, 2], shell: process.platform === 'win32' })
    if (done.status !== 0) {
      console.error(
        `\n'npm ci' failed in ${folder}. See its message above; check that the package registry can be reached, then run the command again.`,
      )
      process.exit(done.status ?? 1)
    }
    writeFileSync(stamp, wanted)
  })
}

await ensureInstalled(root, 'Pawl')
if (file === 'bench/main.ts') await ensureInstalled(join(root, 'bench'), "the benchmark's peers")

const child = spawn(process.execPath, ['--import', 'tsx', '--conditions=source', join(root, file), ...args], {
  cwd: root,
  stdio: 'inherit',
})
// Ctrl-C reaches the child by itself, from the terminal; a signal sent to this process alone is passed on.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) {
  process.on(signal, () => {
    if (!(signal === 'SIGINT' && process.stdin.isTTY)) child.kill(signal)
  })
}
child.on('exit', (code, signal) => process.exit(code ?? (signal ? 128 : 1)))

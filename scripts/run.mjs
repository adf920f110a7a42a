// Runs a TypeScript file of this repository on a fresh clone: installs the locked dependencies when they are missing or
// out of date, then starts the file. It uses nothing but Node, because it runs before anything is installed.
import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { constants } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { withInstallLock } from './install-lock.mjs'
import { npm } from './npm.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const [file, ...args] = process.argv.slice(2)

const [major, minor] = process.versions.node.split('.').map(Number)
if (major < 20 || (major === 20 && minor < 19)) {
  console.error(
    `Pawl needs Node 20.19 or newer; this is ${process.versions.node}. Install a newer Node and run the command again.`,
  )
  process.exit(1)
}

function readText(path) {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}

/** npm notes in node_modules what it has put there. Optional packages may be absent: those of other platforms always are. */
function hasLockedPackages(folder, lockText) {
  const installed = JSON.parse(readText(join(folder, 'node_modules', '.package-lock.json')) || '{}').packages
  if (installed === undefined) return false
  return Object.entries(JSON.parse(lockText).packages).every(([path, { version, link, optional }]) => {
    if (!path.includes('node_modules/') || link) return true
    return installed[path] === undefined ? optional === true : installed[path].version === version
  })
}

async function ensureInstalled(folder, name) {
  const lockText = readFileSync(join(folder, 'package-lock.json'), 'utf8')
  const wanted = createHash('sha256').update(lockText).update(process.versions.modules).digest('hex')
  const stamp = join(folder, 'node_modules', '.pawl-installed')
  const isInstalled = () => readText(stamp) === wanted
  if (isInstalled()) return
  // Not in node_modules, which `npm ci` empties.
  await withInstallLock(join(root, '.pawl', 'install-lock'), () => {
    if (isInstalled()) return
    if (!hasLockedPackages(folder, lockText)) {
      console.error(`Installing the dependencies of ${name} (once, about a minute) ...`)
      // `npm ci` refuses a lock file that lacks optional packages of other platforms, as one made with a partial mirror of the registry
      // does; `npm install` puts the same locked packages in place.
      if (!npm(folder, ['ci'], 'ignore') && !npm(folder, ['install', '--no-save'], 2)) {
        console.error(`\nThe dependencies could not be installed in ${folder}: see npm's message above.`)
        console.error(
          'Check that the package registry can be reached and that this folder can be written to, then run the command again.',
        )
        process.exit(1)
      }
    }
    writeFileSync(stamp, wanted)
  })
}

await ensureInstalled(root, 'Pawl')
if (file === 'bench/main.ts') await ensureInstalled(join(root, 'bench'), "the benchmark's peers")

const child = spawn(process.execPath, ['--import', 'tsx', '--conditions=@pawl/source', join(root, file), ...args], {
  cwd: root,
  stdio: 'inherit',
})
// Ctrl-C reaches the child by itself, from the terminal; a signal sent to this process alone is passed on.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) {
  process.on(signal, () => {
    if (!(signal === 'SIGINT' && process.stdin.isTTY)) child.kill(signal)
  })
}
// npm starts us through a shell, which keeps to itself what it is signalled: when npm or that shell has gone, it was meant for us. A shell
// that a person typed the command into may go, as with nohup.
if (process.env.npm_lifecycle_event !== undefined && process.platform !== 'win32') {
  const family = parents()
  const watch = setInterval(() => {
    if (parents() === family) return
    clearInterval(watch)
    child.kill('SIGTERM')
  }, 250)
}

/** The pids of the shell and, where the system tells, of npm above it. */
function parents() {
  return `${process.ppid} ${/\) \S (\d+)/.exec(readText(`/proc/${process.ppid}/stat`))?.[1]}`
}

child.on('exit', (code, signal) => process.exit(code ?? 128 + (constants.signals[signal] ?? 0)))

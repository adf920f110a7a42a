// The lock under which run.mjs installs. It is made of numbered files and only ever moves forward, for the reasons that
// packages/server/src/embedded/lock.ts gives; that one is TypeScript, and this one runs before anything is installed.
import { spawnSync } from 'node:child_process'
import { linkSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { basename, dirname } from 'node:path'

/** One process installs, and others wait for it. The lock of a killed process is taken over. */
export async function withInstallLock(path, install) {
  mkdirSync(dirname(path), { recursive: true })
  const held = await take(path)
  try {
    return install()
  } finally {
    const draft = writeDraft(path, '{}')
    renameSync(draft, held)
  }
}

async function take(path) {
  const me = JSON.stringify({ pid: process.pid, started: startOf(process.pid) })
  let isWaiting = false
  for (;;) {
    const top = Math.max(0, ...numbersOf(path))
    const holder = livingHolder(`${path}.${top}`)
    if (holder === undefined) {
      if (claim(path, top + 1, me)) return `${path}.${top + 1}`
      continue
    }
    if (!isWaiting) console.error(`Process ${holder} installs the dependencies, by ${path}.${top}; waiting for it ...`)
    isWaiting = true
    await new Promise((resolve) => setTimeout(resolve, 200))
  }
}

/** Takes one number; link() lets exactly one process do so. False when another process has it, or when the lock has moved past it. */
function claim(path, number, me) {
  const draft = writeDraft(path, me)
  try {
    linkSync(draft, `${path}.${number}`)
  } catch (error) {
    if (error.code === 'EEXIST') return false
    throw error
  } finally {
    rmSync(draft, { force: true })
  }
  const others = numbersOf(path)
  const isOutdated = others.some((other) => other > number)
  for (const other of others) if (other < number) rmSync(`${path}.${other}`, { force: true })
  if (isOutdated) rmSync(`${path}.${number}`, { force: true })
  return !isOutdated
}

function writeDraft(path, text) {
  const draft = `${path}.draft-${process.pid}`
  writeFileSync(draft, text)
  return draft
}

function numbersOf(path) {
  const prefix = `${basename(path)}.`
  return readdirSync(dirname(path))
    .filter((name) => name.startsWith(prefix))
    .map((name) => Number(name.slice(prefix.length)))
    .filter(Number.isInteger)
}

/** Undefined when the file is not there, is free, or its process has ended. */
function livingHolder(file) {
  try {
    const { pid, started } = JSON.parse(readFileSync(file, 'utf8'))
    return started !== undefined && startOf(pid) === started ? pid : undefined
  } catch {
    return undefined
  }
}

/** When a process started, as far as the system tells; undefined when there is none. A pid alone may be another's by now. */
function startOf(pid) {
  try {
    process.kill(pid, 0)
  } catch (error) {
    if (error.code !== 'EPERM') return undefined
  }
  if (process.platform === 'win32') return 'unknown'
  if (process.platform !== 'linux')
    return spawnSync('ps', ['-o', 'lstart=', '-p', String(pid)])
      .stdout?.toString()
      .trim()
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  const [state, ...fields] = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return state === 'Z' ? undefined : `${readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()}:${fields[18]}`
}

import { randomBytes } from 'node:crypto'
import { link, open, readdir, readFile, rename, rm } from 'node:fs/promises'
import { basename, dirname } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { codeOf, EmbeddedError } from './errors.ts'
import { startOf } from './processes.ts'

export interface LockOptions {
  readonly waitMs: number
  /** Called once, when the lock is found held by a living process. */
  readonly onWait?: (holderPid: number) => void
}

/**
 * Runs `work` while no other process runs one under the same lock. Node has no flock, so the lock is made of files, and it only
 * ever moves forward, like a ratchet: `<path>.1`, `<path>.2`, ... The file with the highest number says who holds the lock.
 *
 * The usual lock file is deleted when its holder is found dead, and there two finders race: the slower one deletes the file that
 * the faster one has just made. Here the highest file is never deleted. To take over, a process *creates* the next number with link(2),
 * which exactly one process can do; releasing marks the file as free. A killed holder therefore wedges nothing.
 */
export async function withLock<T>(path: string, options: LockOptions, work: () => Promise<T>): Promise<T> {
  const held = await acquire(path, options)
  try {
    return await work()
  } finally {
    await replace(held, free)
  }
}

const pollMs = 25
const free = JSON.stringify({ free: true })

async function acquire(path: string, { waitMs, onWait }: LockOptions): Promise<string> {
  const me = JSON.stringify({ pid: process.pid, started: await startOf(process.pid) })
  const deadline = performance.now() + waitMs
  let waiting = false
  for (;;) {
    const top = await highest(path)
    const holderPid = top === 0 ? undefined : await livingHolder(`${path}.${top}`)
    if (holderPid === undefined) {
      if (await claim(path, top + 1, me)) return `${path}.${top + 1}`
      continue
    }
    if (performance.now() > deadline) throw lockedError(path, holderPid, waitMs)
    if (!waiting) onWait?.(holderPid)
    waiting = true
    await sleep(pollMs)
  }
}

/** Takes one number. False when another process has it, or when the lock has moved past it. */
async function claim(path: string, number: number, me: string): Promise<boolean> {
  const file = `${path}.${number}`
  const draft = await writeDraft(path, me)
  try {
    await link(draft, file)
  } catch (error) {
    // ENOENT: a winner has cleared our draft away along with those of dead processes. Either way, try again.
    if (codeOf(error) === 'EEXIST' || codeOf(error) === 'ENOENT') return false
    throw error
  } finally {
    await rm(draft, { force: true })
  }
  // Numbers below the highest are deleted by its holder, so a slow claimer can create one of those again. A higher one is then
  // already there, because it was created before the lower one was deleted: looking once, after the link, is enough.
  const endings = await endingsOf(path)
  if (endings.some((ending) => Number(ending) > number)) {
    await rm(file, { force: true })
    return false
  }
  const outdated = endings.filter((ending) => Number(ending) < number || ending.includes('draft-'))
  await Promise.all(outdated.map((ending) => rm(`${path}.${ending}`, { force: true })))
  return true
}

async function livingHolder(file: string): Promise<number | undefined> {
  // A file that vanished has been superseded, and one that does not parse was cut short by a power failure: both hold nothing.
  const text = await readFile(file, 'utf8').catch(() => '')
  const holder = parseHolder(text)
  if (holder === undefined) return undefined
  return (await startOf(holder.pid)) === holder.started ? holder.pid : undefined
}

function parseHolder(text: string): { pid: number; started: unknown } | undefined {
  try {
    const value = JSON.parse(text) as { pid?: unknown; started?: unknown }
    return typeof value.pid === 'number' ? { pid: value.pid, started: value.started } : undefined
  } catch {
    return undefined
  }
}

async function highest(path: string): Promise<number> {
  const numbers = (await endingsOf(path)).map(Number).filter(Number.isInteger)
  return Math.max(0, ...numbers)
}

/** What follows `<path>.` in the names of the lock's files: a number, or the name of a draft, which makes no number. */
async function endingsOf(path: string): Promise<string[]> {
  const prefix = `${basename(path)}.`
  const names = await readdir(dirname(path))
  return names.filter((name) => name.startsWith(prefix)).map((name) => name.slice(prefix.length))
}

/** Replaces a file's content in one step, so that no reader ever sees half of it. */
async function replace(file: string, content: string): Promise<void> {
  try {
    await rename(await writeDraft(file, content), file)
  } catch (error) {
    // With its directory deleted, the lock is free.
    if (codeOf(error) !== 'ENOENT') throw error
  }
}

/** Readable by all, whatever the umask: root and a user may take turns in one directory, and there is no secret in it. */
async function writeDraft(path: string, content: string): Promise<string> {
  const draft = `${path}.draft-${randomBytes(6).toString('hex')}`
  const file = await open(draft, 'wx')
  try {
    // Through the open file, as its name may be cleared away at any time.
    await file.writeFile(content)
    await file.chmod(0o644)
  } finally {
    await file.close()
  }
  return draft
}

function lockedError(path: string, holderPid: number, waitMs: number): EmbeddedError {
  return new EmbeddedError(
    'locked',
    `Process ${holderPid} has held ${path} for more than ${Math.round(waitMs / 1000)} s. It is starting or stopping the same ` +
      `database and has not finished. Check process ${holderPid}, and start again once it has ended: its lock is then free.`,
  )
}

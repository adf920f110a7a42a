import { lstat, rm, rmdir } from 'node:fs/promises'
import { isRoot } from '../binaries/account.ts'
import { run } from '../binaries/run.ts'

/**
 * Removes a directory as far as it can, now; what still writes to it may leave something for the next time. Root removes the files of
 * another account as that account, which could otherwise put a link in the way and have root delete something else.
 */
export async function removeTree(path: string): Promise<void> {
  const found = await lstat(path).catch(() => undefined)
  if (found === undefined) return
  if (!isRoot() || found.uid === 0) {
    await rm(path, { recursive: true, force: true, maxRetries: 5 }).catch(() => {})
    return
  }
  // Its last step, the directory itself, fails, since what it lies in belongs to root.
  await run('/bin/rm', ['-rf', '--', path], { cwd: '/', env: {}, runAs: { uid: found.uid, gid: found.gid } })
  await rmdir(path).catch(() => {})
}

import { stat } from 'node:fs/promises'
import { dirname } from 'node:path'

/**
 * Why what we keep in this directory could be exchanged by another user; undefined when it could not. A user who can rename files in it,
 * or in a directory above, can replace ours.
 */
export async function whyNotSafe(dir: string, uid: number): Promise<string | undefined> {
  const found = await stat(dir)
  const othersWrite = (found.mode & 0o022) !== 0
  const sticky = (found.mode & 0o1000) !== 0
  // In a user namespace the real root shows as another number, the one that owns `/`.
  const trusted = [0, uid, (await stat('/')).uid]
  if (!trusted.includes(found.uid)) return `${dir} belongs to uid ${found.uid}`
  if (othersWrite && !sticky) return `${dir} can be written to by others and has no sticky bit`
  const parent = dirname(dir)
  return parent === dir ? undefined : whyNotSafe(parent, uid)
}

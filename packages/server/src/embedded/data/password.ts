import { randomBytes } from 'node:crypto'
import { chmod, readFile, rename, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { codeOf, EmbeddedError } from '../errors.ts'

function passwordPath(dir: string): string {
  return join(dir, 'password')
}

/**
 * The password of this directory, generated the first time. It is written before initdb runs, so no crash can leave data without it.
 * Called under the lock of `dir`.
 */
export async function ensurePassword(dir: string, hasData: boolean): Promise<string> {
  const file = passwordPath(dir)
  const found = await readFile(file, 'utf8').catch((error: unknown) => {
    if (codeOf(error) === 'ENOENT') return undefined
    throw error
  })
  if (found !== undefined && found.trim() !== '') {
    // Copying a directory about tends to lose modes.
    await chmod(file, 0o600).catch(() => {})
    return found.trim()
  }
  if (hasData) {
    throw new EmbeddedError(
      'password_missing',
      `${file} is missing, so no login to the database beside it is possible. Restore the file, or remove ${dir} to start with an empty database.`,
    )
  }
  const password = randomBytes(24).toString('base64url')
  await writeFile(`${file}.new`, `${password}\n`, { mode: 0o600 })
  await rename(`${file}.new`, file)
  return password
}

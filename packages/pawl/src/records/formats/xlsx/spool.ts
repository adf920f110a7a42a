// A zip has its directory at its end, so a workbook is written to disk before it is read.

import { randomUUID } from 'node:crypto'
import { type FileHandle, open, unlink } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** A file that has no name any more: however the process ends, the system removes it. */
export async function spool(chunks: AsyncIterable<Uint8Array>): Promise<FileHandle> {
  const path = join(tmpdir(), `pawl-${randomUUID()}.xlsx`)
  const file = await open(path, 'wx+', 0o600)
  try {
    await unlink(path)
    // Unlike write(), it goes on until all bytes of the chunk are written.
    for await (const chunk of chunks) await file.writeFile(chunk)
    return file
  } catch (error) {
    await file.close()
    throw error
  }
}

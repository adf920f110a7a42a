// The text files that the library comes with: its SQL, its migrations and the released schema. From the sources they are read where they
// are. A build has another module in place of this one, with all of them inside (scripts/inline.ts): a bundle has no files beside it.

import { readdirSync, readFileSync } from 'node:fs'

export function readText(file: URL): string {
  return readFileSync(file, 'utf8')
}

export function namesIn(folder: URL): string[] {
  return readdirSync(folder).sort()
}

// A transaction of ours in a handler's hands is ours to end. What a handler sends is refused where its text says that it would end it; what
// no text says, such as a function of another language that does it, the commit finds out (packet.ts).

import { PawlError } from '../errors.ts'

/** Where a statement may begin: most texts have none of these words there. */
const mayEnd = /(?:^|[;/\n])\s*(?:commit|rollback|abort|end|prepare)\b/i

/** Strings, names in quotes and comments. */
const opaque =
  /\b[eE]'[^'\\]*(?:(?:\\[\s\S]|'')[^'\\]*)*'|'[^']*'|"[^"]*"|\$([A-Za-z_\u0080-\uffff][\w\u0080-\uffff]*|)\$[\s\S]*?\$\1\$|--[^\n]*|\/\*[\s\S]*?\*\//g

const endsIt = /(?:^|;)\s*((?:commit|end|abort|prepare\s+transaction)\b|rollback\b(?!\s+(?:(?:work|transaction)\s+)?to\b))/i

/** The words with which this text would end its transaction. A body of `begin atomic ... end` is not looked into. */
export function endOf(text: string): string | undefined {
  if (!mayEnd.test(text)) return undefined
  const plain = text.replace(opaque, ' ')
  return /\bbegin\s+atomic\b/i.test(plain) ? undefined : endsIt.exec(plain)?.[1]
}

export function txEnded(what: string, cause?: unknown): PawlError {
  return new PawlError(
    'PAWL_TX_ENDED',
    `${what}. Only Pawl may end it: return to commit, throw to roll back, use savepoints to undo a part. Pawl has settled nothing.`,
    { cause },
  )
}

export function refusedEnd(words: string): PawlError {
  return txEnded(`A handler sent '${words.toLowerCase().replace(/\s+/g, ' ')}' through its transaction`)
}

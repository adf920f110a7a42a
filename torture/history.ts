// The history of each process, one line of JSON for each thing that it saw or did. Lines are written synchronously: a line survives a kill -9 at the next instruction.

import { openSync, readdirSync, readFileSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { isPawlError } from 'pawl'

export interface Entry {
  /** The process slot and which start of it: w2.1 is the first start of w2. */
  readonly proc: string
  readonly n: number
  readonly wall: number
  readonly op: string
  /** invoke; ok; fail: it certainly did not happen; info: it may have happened. */
  readonly ph?: 'invoke' | 'ok' | 'fail' | 'info'
  readonly [field: string]: unknown
}

export type Fields = Readonly<Record<string, unknown>>

export class History {
  readonly proc: string
  readonly #file: number
  #n = 0

  constructor(dir: string, proc: string, thread = '') {
    this.proc = proc
    this.#file = openSync(join(dir, `${proc}${thread}.ndjson`), 'a')
  }

  write(op: string, fields: Fields = {}): void {
    writeSync(this.#file, `${JSON.stringify({ proc: this.proc, n: this.#n++, wall: Date.now(), op, ...fields })}\n`)
  }

  /**
   * Writes down what is asked before it is asked, then the answer. Only PAWL_COMMIT_UNKNOWN leaves open whether it happened. `once` is
   * written before the call only.
   */
  async call<T>(
    op: string,
    asked: Fields,
    work: () => Promise<T>,
    told?: (answer: T) => Fields,
    once: Fields = {},
  ): Promise<{ answer?: T; error?: unknown }> {
    this.write(op, { ph: 'invoke', ...asked, ...once })
    try {
      const answer = await work()
      this.write(op, { ph: 'ok', ...asked, ...told?.(answer) })
      return { answer }
    } catch (error) {
      const ph = isPawlError(error, 'PAWL_COMMIT_UNKNOWN') ? 'info' : 'fail'
      this.write(op, { ph, ...asked, code: isPawlError(error) ? error.code : undefined, error: String(error).slice(0, 300) })
      return { error }
    }
  }
}

/** Every line of every process, or of the processes of one slot. */
export function readHistory(dir: string, slot?: string): Entry[] {
  return readdirSync(dir)
    .filter((file) => file.endsWith('.ndjson') && (slot === undefined || file.startsWith(`${slot}.`)))
    .sort()
    .flatMap((file) => readFileSync(join(dir, file), 'utf8').split('\n'))
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Entry)
}

// What each process saw and did, one line of JSON each. Written synchronously, so that a line is kept although its process is killed at
// the next instruction.

import { appendFileSync, existsSync, openSync, readdirSync, readFileSync, writeSync } from 'node:fs'
import { join } from 'node:path'

export interface Entry {
  /** The process slot and which start of it: w2.1 is the first start of w2. */
  readonly proc: string
  readonly n: number
  readonly monoMs: number
  readonly wall: number
  readonly op: string
  /** invoke, ok, fail: it certainly did not happen; info: nobody knows whether it did. */
  readonly ph?: 'invoke' | 'ok' | 'fail' | 'info'
  readonly [field: string]: unknown
}

export class History {
  readonly proc: string
  readonly #file: number
  #n = 0

  constructor(dir: string, proc: string, thread = '') {
    this.proc = proc
    this.#file = openSync(join(dir, `${proc}${thread}.ndjson`), 'a')
  }

  write(op: string, fields: Readonly<Record<string, unknown>> = {}): void {
    const entry = { proc: this.proc, n: this.#n++, monoMs: Math.round(performance.now()), wall: Date.now(), op, ...fields }
    writeSync(this.#file, `${JSON.stringify(entry)}\n`)
  }
}

/** The outside world: every delivery it ever got, from whom, in no way made unique. */
export function deliver(dir: string, delivery: Readonly<Record<string, unknown>>): void {
  appendFileSync(join(dir, 'sink.jsonl'), `${JSON.stringify(delivery)}\n`)
}

export interface Delivery {
  readonly job: string
  readonly fence: string
  readonly attempt: number
  readonly idempotencyKey: string
  readonly proc: string
}

export function readDeliveries(dir: string): Delivery[] {
  return readLines(join(dir, 'sink.jsonl')) as unknown as Delivery[]
}

/** Every line of every process, or of the processes of one slot. */
export function readHistory(dir: string, slot?: string): Entry[] {
  return readdirSync(dir)
    .filter((file) => file.endsWith('.ndjson') && (slot === undefined || file.startsWith(`${slot}.`)))
    .sort()
    .flatMap((file) => readLines(join(dir, file)) as unknown as Entry[])
}

function readLines(path: string): Record<string, unknown>[] {
  if (!existsSync(path)) return []
  return readFileSync(path, 'utf8')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Record<string, unknown>)
}

// The bytes of an upload: counted, limited, digested, and decoded strictly, whatever the chunks are.

import { createHash } from 'node:crypto'
import { PawlError, shown } from '../../errors.ts'
import { refused } from '../../kernel/options.ts'
import type { Body, UploadOptions } from '../types.ts'

/** Why a file is refused as a whole, as `records.errors` gives it. First those of a limit, then those of a file that is not what its format says. */
export const fileCodes = [
  'too-large',
  'too-many-rows',
  'too-many-columns',
  'row-too-long',
  'bomb',
  'empty',
  'encoding',
  'header',
  'quote',
  'json',
  'xlsx',
] as const

export type FileCode = (typeof fileCodes)[number]

/** The file cannot be taken as it is. The sender must change it, so the submission is invalid and not failed. */
export class InvalidFile extends Error {
  override readonly name = 'InvalidFile'
  readonly code: FileCode
  readonly line: number

  constructor(code: FileCode, line: number, reason: string) {
    super(reason)
    this.code = code
    this.line = line
  }
}

/** By its name: a format may come from another build of this package. */
export function isInvalidFile(error: unknown): error is InvalidFile {
  return error instanceof Error && error.name === 'InvalidFile'
}

/** The rows of a chunk, then its fault: what comes before a malformed row is read whatever the chunks are, and its errors are told. */
export function* untilInvalid<Row>(read: (rows: Row[]) => void): Generator<Row[]> {
  const rows: Row[] = []
  let fault: unknown
  try {
    read(rows)
  } catch (error) {
    if (!isInvalidFile(error)) throw error
    fault = error
  }
  if (rows.length > 0) yield rows
  if (fault !== undefined) throw fault
}

function bytesOf(chunk: Uint8Array | string): Buffer {
  if (typeof chunk === 'string') return Buffer.from(chunk)
  if (ArrayBuffer.isView(chunk)) return Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength)
  throw refused('upload', `each chunk of the body must be a string, Buffer or Uint8Array, got ${shown(chunk)}`)
}

export class UploadBytes {
  readonly #chunks: AsyncIterable<Uint8Array | string> | Iterable<Uint8Array | string>
  readonly #limit: { readonly name: string; readonly bytesMax: number }
  readonly #hash = createHash('sha256')
  count = 0

  constructor(body: Body, limit: { readonly name: string; readonly bytesMax: number }, signal: AbortSignal | undefined) {
    // A string or a Buffer is one chunk; iterated it would be one of each character or byte.
    const chunks = typeof body === 'string' || ArrayBuffer.isView(body) ? [body] : body
    this.#chunks = signal === undefined ? chunks : abortable(chunks, signal)
    this.#limit = limit
  }

  async *chunks(): AsyncGenerator<Buffer> {
    for await (const chunk of this.#chunks) {
      const bytes = bytesOf(chunk)
      this.count += bytes.length
      if (this.count > this.#limit.bytesMax) {
        throw new InvalidFile(
          'too-large',
          0,
          `The file is larger than ${this.#limit.bytesMax} bytes. Split it, or raise ${this.#limit.name}.`,
        )
      }
      this.#hash.update(bytes)
      yield bytes
    }
  }

  /** The same as text. Bytes that are no UTF-8 are an error, not question marks. */
  async *text(): AsyncGenerator<string> {
    const decoder = new TextDecoder('utf-8', { fatal: true })
    const decode = (bytes?: Buffer) => {
      try {
        return bytes === undefined ? decoder.decode() : decoder.decode(bytes, { stream: true })
      } catch {
        throw new InvalidFile(
          'encoding',
          0,
          `The file is not UTF-8 (near byte ${this.count}). Save it as UTF-8 and upload it again.`,
        )
      }
    }
    for await (const bytes of this.chunks()) {
      const text = decode(bytes)
      if (text !== '') yield text
    }
    const rest = decode()
    if (rest !== '') yield rest
  }

  /** Of all that has come, if that is all that the sender says it sent. */
  digest(expected: UploadOptions['expect'] = {}): string {
    const { count } = this
    const sha256 = this.#hash.digest('hex')
    if (expected.bytes !== undefined && expected.bytes !== count)
      throw new PawlError(
        'PAWL_UPLOAD_FAILED',
        `Expected ${expected.bytes} bytes, got ${count}: the upload is incomplete or damaged. Upload it again with restart.`,
        { details: { expected: expected.bytes, actual: count } },
      )
    if (expected.sha256 !== undefined && expected.sha256.toLowerCase() !== sha256)
      throw new PawlError(
        'PAWL_UPLOAD_FAILED',
        'The upload is damaged: its SHA-256 is not the expected one. Upload it again with restart.',
        { details: { expected: expected.sha256, actual: sha256 } },
      )
    return sha256
  }
}

/** A body that can be left at any moment, also while its next chunk does not come: the same chunks, until the signal. Its listener goes with each chunk: a promise that waited for all of them would keep all of them. */
async function* abortable<Chunk>(body: AsyncIterable<Chunk> | Iterable<Chunk>, signal: AbortSignal): AsyncGenerator<Chunk> {
  const chunks = Symbol.asyncIterator in body ? body[Symbol.asyncIterator]() : body[Symbol.iterator]()
  let isDone = false
  try {
    for (;;) {
      const next = await orAborted(async () => chunks.next(), signal)
      if (next.done === true) {
        isDone = true
        return
      }
      yield next.value
    }
  } finally {
    // Told and not waited for: who hangs in `next` may hang here as well.
    if (!isDone) void (async () => chunks.return?.())().catch(() => undefined)
  }
}

function orAborted<Answer>(ask: () => Promise<Answer>, signal: AbortSignal): Promise<Answer> {
  signal.throwIfAborted()
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason as Error)
    signal.addEventListener('abort', stop, { once: true })
    ask()
      .then(resolve, reject)
      .finally(() => signal.removeEventListener('abort', stop))
  })
}

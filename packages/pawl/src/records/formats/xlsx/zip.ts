// The parts of a workbook, out of its zip file. yauzl reads the directory and unpacks; here are the limits and the checksum. A part whose
// size, checksum or place is not what the directory says is refused.

import { read } from 'node:fs'
import type { FileHandle } from 'node:fs/promises'
import { Readable } from 'node:stream'
import { crc32 } from 'node:zlib'
import { type Entry, fromRandomAccessReaderPromise, RandomAccessReader, type ZipFile } from 'yauzl'
import { InvalidFile } from '../bytes.ts'
import type { XlsxLimits } from './options.ts'

const directoryBytesMax = 16_777_216
const blockBytes = 65_536
/** A part up to this size cannot hurt, whatever its ratio: a small sheet of equal cells packs well. */
const harmlessBytes = 65_536

export class Parts {
  readonly #zip: ZipFile
  readonly #entries: ReadonlyMap<string, Entry>
  readonly #limits: XlsxLimits
  #unpackedBytes = 0

  private constructor(zip: ZipFile, entries: ReadonlyMap<string, Entry>, limits: XlsxLimits) {
    this.#zip = zip
    this.#entries = entries
    this.#limits = limits
  }

  static async open(file: FileHandle, limits: XlsxLimits): Promise<Parts> {
    const { size } = await file.stat()
    await assertNotOld(file)
    try {
      const zip = await fromRandomAccessReaderPromise(new FileReader(file), size, { autoClose: false })
      if (zip.entryCount > limits.entriesMax)
        throw tooLarge(`The workbook has ${zip.entryCount} entries; the limit is ${limits.entriesMax}`, 'entriesMax')
      return new Parts(zip, await readEntries(zip), limits)
    } catch (error) {
      throw unreadable('its directory', error)
    }
  }

  has(path: string): boolean {
    return this.#entries.has(path.toLowerCase())
  }

  /** The unpacked bytes of a part. They are proved only when the last of them has come. */
  async *read(path: string): AsyncGenerator<Buffer> {
    const entry = this.#entries.get(path.toLowerCase())
    if (entry === undefined) throw notWorkbook(`it has no '${path.slice(0, 100)}'`)
    if (entry.isEncrypted()) throw notWorkbook('it is encrypted. Save it without a password')
    this.#assertSize(entry)
    let crc = 0
    try {
      const stream = await this.#zip.openReadStreamPromise(entry)
      try {
        for await (const chunk of stream as AsyncIterable<Buffer>) {
          crc = crc32(chunk, crc)
          yield chunk
        }
      } finally {
        stream.destroy()
      }
    } catch (error) {
      throw unreadable(`'${path}'`, error)
    }
    if (crc !== entry.crc32) throw notWorkbook(`'${path}' is damaged: its checksum (CRC-32) is wrong`)
  }

  /** By what the directory says; yauzl refuses a part that unpacks to anything else. */
  #assertSize({ fileName, compressedSize, uncompressedSize }: Entry): void {
    const { ratioMax, unpackedBytesMax } = this.#limits
    if (uncompressedSize > harmlessBytes && uncompressedSize > compressedSize * ratioMax)
      throw new InvalidFile(
        'bomb',
        0,
        `'${fileName}' of the workbook unpacks to more than ${ratioMax} times its size, so it is not read.`,
      )
    this.#unpackedBytes += uncompressedSize
    if (this.#unpackedBytes > unpackedBytesMax)
      throw tooLarge(`The workbook unpacks to more than ${unpackedBytesMax} bytes`, 'unpackedBytesMax')
  }
}

/** Names are compared without case, as the standard of these packages says; of two that are equal each program would take another one. */
async function readEntries(zip: ZipFile): Promise<Map<string, Entry>> {
  const entries = new Map<string, Entry>()
  let bytes = 0
  for await (const entry of zip.eachEntry()) {
    bytes += entry.fileNameLength + entry.extraFieldLength + entry.fileCommentLength
    if (bytes > directoryBytesMax) throw tooLarge(`The directory of the workbook has more than ${directoryBytesMax} bytes`)
    const name = entry.fileName.toLowerCase()
    if (entries.has(name)) throw notWorkbook(`it has '${name.slice(0, 100)}' twice`)
    entries.set(name, entry)
  }
  return entries
}

/** What Excel wrote until 2003, and what it writes around a workbook that has a password. */
async function assertNotOld(file: FileHandle): Promise<void> {
  const { buffer } = await file.read(Buffer.alloc(4), 0, 4, 0)
  if (buffer.readUInt32BE(0) === 0xd0cf11e0)
    throw notWorkbook('it is an .xls file, or has a password. Save it as .xlsx without a password')
}

/** The file stays ours: yauzl would close a descriptor that it was given. */
class FileReader extends RandomAccessReader {
  readonly #file: FileHandle

  constructor(file: FileHandle) {
    super()
    this.#file = file
  }

  override _readStreamForRange(start: number, end: number): Readable {
    return Readable.from(this.#blocks(start, end), { objectMode: false })
  }

  override read(
    buffer: Buffer,
    offset: number,
    length: number,
    position: number,
    callback: (error: Error | null, bytesRead?: number) => void,
  ): void {
    read(this.#file.fd, buffer, offset, length, position, callback)
  }

  override close(callback: (error: Error | null) => void): void {
    callback(null)
  }

  async *#blocks(start: number, end: number): AsyncGenerator<Buffer> {
    for (let at = start; at < end; ) {
      const { buffer, bytesRead } = await this.#file.read(Buffer.alloc(Math.min(blockBytes, end - at)), 0, null, at)
      if (bytesRead === 0) return
      at += bytesRead
      yield buffer.subarray(0, bytesRead)
    }
  }
}

/** An error of the file system is ours; any other is the file's. */
function unreadable(what: string, error: unknown): unknown {
  if (error instanceof InvalidFile || !(error instanceof Error) || 'syscall' in error) return error
  return notWorkbook(`${what} cannot be read (${error.message}); it may have been cut short`)
}

export function tooLarge(reason: string, option?: keyof XlsxLimits): InvalidFile {
  const fix =
    option === undefined ? 'Split it, or save it as CSV' : `Split it, save it as CSV, or raise tuning.${option} of xlsx()`
  return new InvalidFile('too-large', 0, `${reason}. ${fix}.`)
}

export function notWorkbook(reason: string): InvalidFile {
  return new InvalidFile('xlsx', 0, `The workbook cannot be read: ${reason}.`)
}

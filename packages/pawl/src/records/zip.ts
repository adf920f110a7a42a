// Reading a zip file that was spooled to disk: its directory is at its end, so it cannot be read as it comes. Everything has a limit, and
// sizes that the directory claims are never believed: bytes are counted as they are unpacked.

import type { FileHandle } from 'node:fs/promises'
import { Readable } from 'node:stream'
import { createInflateRaw } from 'node:zlib'
import { Malformed } from './bytes.ts'
import type { XlsxLimits } from './types.ts'

interface Entry {
  readonly name: string
  readonly method: number
  readonly packedBytes: number
  readonly offset: number
}

const endSignature = 0x06054b50
const directorySignature = 0x02014b50
const localSignature = 0x04034b50
const endBytes = 22
const commentBytesMax = 65_535
const directoryBytesMax = 16_777_216
const blockBytes = 65_536

export class ZipFile {
  readonly #file: FileHandle
  readonly #entries: ReadonlyMap<string, Entry>
  readonly #limits: XlsxLimits
  #unpackedBytes = 0

  private constructor(file: FileHandle, entries: ReadonlyMap<string, Entry>, limits: XlsxLimits) {
    this.#file = file
    this.#entries = entries
    this.#limits = limits
  }

  static async open(file: FileHandle, sizeBytes: number, limits: XlsxLimits): Promise<ZipFile> {
    const tail = await readAt(
      file,
      Math.max(0, sizeBytes - endBytes - commentBytesMax),
      Math.min(sizeBytes, endBytes + commentBytesMax),
    )
    let at = tail.length - endBytes
    while (at >= 0 && tail.readUInt32LE(at) !== endSignature) at--
    if (at < 0) throw notZip('it has no directory; it may have been cut short')
    const count = tail.readUInt16LE(at + 10)
    const bytes = tail.readUInt32LE(at + 12)
    const offset = tail.readUInt32LE(at + 16)
    if (count > limits.entriesMax) throw notZip(`it has ${count} entries; the limit is ${limits.entriesMax}`)
    if (bytes > directoryBytesMax || offset + bytes > sizeBytes) throw notZip('its directory is not where it says')
    return new ZipFile(file, readDirectory(await readAt(file, offset, bytes), count), limits)
  }

  has(name: string): boolean {
    return this.#entries.has(name)
  }

  /** The unpacked bytes of an entry, as they come. */
  async *read(name: string): AsyncGenerator<Buffer> {
    const entry = this.#entries.get(name)
    if (entry === undefined) throw notZip(`it has no '${name}'`)
    if (entry.packedBytes === 0) return
    if (entry.method !== 0 && entry.method !== 8)
      throw notZip(`'${name}' is packed by a method that is not known (${entry.method})`)
    const packed = Readable.from(this.#packed(await this.#dataStart(entry), entry.packedBytes))
    const source = entry.method === 0 ? packed : packed.pipe(createInflateRaw())
    packed.on('error', (error) => source.destroy(error))
    let unpacked = 0
    try {
      for await (const chunk of source as AsyncIterable<Buffer>) {
        unpacked += chunk.length
        this.#unpackedBytes += chunk.length
        this.#assertSize(name, unpacked, entry.packedBytes)
        yield chunk
      }
    } catch (error) {
      if (error instanceof Malformed) throw error
      throw notZip(`'${name}' cannot be unpacked (${error instanceof Error ? error.message : String(error)})`)
    } finally {
      source.destroy()
      packed.destroy()
    }
  }

  async *#packed(start: number, bytes: number): AsyncGenerator<Buffer> {
    for (let at = 0; at < bytes; ) {
      const block = await readAt(this.#file, start + at, Math.min(blockBytes, bytes - at))
      if (block.length === 0) return
      at += block.length
      yield block
    }
  }

  #assertSize(name: string, unpacked: number, packed: number): void {
    const { ratioMax, unpackedBytesMax } = this.#limits
    // Small entries may pack well; a bomb does not stay small.
    if (unpacked > 1_048_576 && unpacked > packed * ratioMax)
      throw new Malformed(
        'bomb',
        0,
        `'${name}' of the workbook unpacks to more than ${ratioMax} times its size. It is not read further.`,
      )
    if (this.#unpackedBytes > unpackedBytesMax)
      throw new Malformed(
        'too-large',
        0,
        `The workbook unpacks to more than ${unpackedBytesMax} bytes. Split it, or raise limits.xlsx.unpackedBytesMax.`,
      )
  }

  async #dataStart(entry: Entry): Promise<number> {
    const header = await readAt(this.#file, entry.offset, 30)
    if (header.length < 30 || header.readUInt32LE(0) !== localSignature)
      throw notZip(`'${entry.name}' is not where the directory says`)
    return entry.offset + 30 + header.readUInt16LE(26) + header.readUInt16LE(28)
  }
}

function readDirectory(bytes: Buffer, count: number): Map<string, Entry> {
  const entries = new Map<string, Entry>()
  let at = 0
  for (let index = 0; index < count; index++) {
    if (at + 46 > bytes.length || bytes.readUInt32LE(at) !== directorySignature) throw notZip('its directory is damaged')
    if ((bytes.readUInt16LE(at + 8) & 1) === 1) throw notZip('it is encrypted')
    const nameBytes = bytes.readUInt16LE(at + 28)
    const name = bytes.toString('utf8', at + 46, at + 46 + nameBytes)
    entries.set(name, {
      name,
      method: bytes.readUInt16LE(at + 10),
      packedBytes: bytes.readUInt32LE(at + 20),
      offset: bytes.readUInt32LE(at + 42),
    })
    at += 46 + nameBytes + bytes.readUInt16LE(at + 30) + bytes.readUInt16LE(at + 32)
  }
  return entries
}

async function readAt(file: FileHandle, position: number, length: number): Promise<Buffer> {
  const buffer = Buffer.alloc(length)
  const { bytesRead } = await file.read(buffer, 0, length, position)
  return buffer.subarray(0, bytesRead)
}

function notZip(reason: string): Malformed {
  return new Malformed('xlsx', 0, `This is not a workbook that can be read: ${reason}.`)
}

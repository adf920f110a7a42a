// The elements of an XML part that the reader asks for, as they come. saxes proves that the part is well-formed to its end; a part with a
// document type, with an encoding that a workbook does not have, or nested or long beyond reason is refused.

import { TextDecoder } from 'node:util'
import { SaxesParser, type SaxesTagPlain } from 'saxes'
import { InvalidFile } from '../bytes.ts'

export type Attributes = Readonly<Record<string, string>>

/** What to do with an element, and which elements inside it matter. Others are passed over with all that is in them. */
export interface Shape {
  open?(attributes: Attributes): void
  /** Its own text and CDATA, in as many pieces as comments and elements leave. */
  text?(text: string): void
  close?(): void
  readonly inside?: Readonly<Record<string, Shape>>
}

const depthMax = 200

/** Yields after each chunk, so that what the shapes have collected can be passed on. `root` has one name: that of the root element. */
export async function* walkXml(
  chunks: AsyncIterable<Buffer>,
  part: string,
  root: Readonly<Record<string, Shape>>,
  charsMax: number,
): AsyncGenerator<void> {
  const walk = new Walk(part, root, charsMax)
  for await (const chunk of chunks) {
    walk.push(chunk)
    yield
  }
  walk.end()
  yield
}

export async function readXml(...given: Parameters<typeof walkXml>): Promise<void> {
  for await (const _chunk of walkXml(...given));
}

/** By its local name: the prefix is the writer's choice. */
export function attributeOf(attributes: Attributes, name: string): string | undefined {
  if (attributes[name] !== undefined) return attributes[name]
  const prefixed = Object.keys(attributes).find((each) => each.endsWith(`:${name}`))
  return prefixed === undefined ? undefined : attributes[prefixed]
}

class Walk {
  readonly #part: string
  readonly #root: Readonly<Record<string, Shape>>
  readonly #charsMax: number
  readonly #parser = new SaxesParser<{ xmlns: false; position: false }>({ xmlns: false, position: false })
  readonly #open: (Shape | undefined)[] = []
  #decoder: TextDecoder | undefined
  /** Since the last tag. saxes holds text content or a tag in memory until its end. */
  #chars = 0

  constructor(part: string, root: Readonly<Record<string, Shape>>, charsMax: number) {
    this.#part = part
    this.#root = root
    this.#charsMax = charsMax
    const parser = this.#parser
    parser.on('error', (error) => {
      throw this.#malformed(`is not well-formed (${error.message}); the file may have been cut short`)
    })
    parser.on('doctype', () => {
      throw this.#malformed('has a document type declaration, which a workbook must not have')
    })
    parser.on('xmldecl', ({ encoding }) => this.#assertEncoding(encoding))
    parser.on('opentag', (tag) => this.#opened(tag))
    parser.on('closetag', () => this.#closed())
    const text = (found: string) => this.#open.at(-1)?.text?.(found)
    parser.on('text', text)
    parser.on('cdata', text)
  }

  push(bytes: Buffer): void {
    this.#decoder ??= new TextDecoder(encodingOf(bytes), { fatal: true })
    this.#write(this.#decode(bytes))
  }

  end(): void {
    this.#write(this.#decode())
    this.#parser.close()
  }

  #write(text: string): void {
    this.#chars += text.length
    if (this.#chars > this.#charsMax) throw this.#malformed(`has more than ${this.#charsMax} characters without a tag`)
    this.#parser.write(text)
  }

  #decode(bytes?: Buffer): string {
    try {
      return (bytes === undefined ? this.#decoder?.decode() : this.#decoder?.decode(bytes, { stream: true })) ?? ''
    } catch {
      throw new InvalidFile('encoding', 0, `'${this.#part}' of the workbook is not ${this.#decoder!.encoding.toUpperCase()}.`)
    }
  }

  #assertEncoding(declared: string | undefined): void {
    const used = this.#decoder!.encoding
    const isUsed = used === 'utf-8' ? /^(?:utf-?8|us-ascii|ascii)$/i : /^utf-?16/i
    if (declared === undefined || isUsed.test(declared)) return
    const is = used === 'utf-8' ? 'a workbook is UTF-8 or UTF-16' : `it is ${used.toUpperCase()}`
    throw new InvalidFile('encoding', 0, `'${this.#part}' of the workbook is declared as ${declared.slice(0, 40)}; ${is}.`)
  }

  #opened({ name, attributes }: SaxesTagPlain): void {
    this.#chars = 0
    const open = this.#open
    if (open.length >= depthMax) throw this.#malformed(`has elements nested more than ${depthMax} deep`)
    const known = open.length === 0 ? this.#root : open.at(-1)?.inside
    const local = name.slice(name.indexOf(':') + 1)
    const shape = known !== undefined && Object.hasOwn(known, local) ? known[local] : undefined
    if (open.length === 0 && shape === undefined)
      throw this.#malformed(`must have the root element <${Object.keys(this.#root)[0]}>, got <${local.slice(0, 40)}>`)
    open.push(shape)
    shape?.open?.(attributes)
  }

  #closed(): void {
    this.#chars = 0
    this.#open.pop()?.close?.()
  }

  #malformed(reason: string): InvalidFile {
    return new InvalidFile('xlsx', 0, `'${this.#part}' of the workbook ${reason}.`)
  }
}

/** By its mark, or by the two bytes that '<' has in UTF-16. */
function encodingOf(bytes: Buffer): string {
  const [first, second] = bytes
  if ((first === 0xfe && second === 0xff) || (first === 0 && second === 0x3c)) return 'utf-16be'
  return (first === 0xff && second === 0xfe) || (first === 0x3c && second === 0) ? 'utf-16le' : 'utf-8'
}

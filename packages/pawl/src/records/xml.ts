// As much XML as a workbook needs: the elements of one name out of a stream, their attributes, and the text inside. No entities but the five
// of XML and numbers are known, so none can grow.

import { Malformed } from './bytes.ts'

const elementCharsMax = 4_000_000

/** The texts of all elements with this name, one after another, whatever the chunks are. They must not be nested in themselves. */
export async function* elements(chunks: AsyncIterable<Buffer>, name: string): AsyncGenerator<string> {
  const decoder = new TextDecoder('utf-8')
  const opening = new RegExp(`<${name}(?=[\\s/>])`)
  const closing = `</${name}>`
  let rest = ''
  for await (const chunk of chunks) {
    rest += decoder.decode(chunk, { stream: true })
    for (;;) {
      const start = rest.search(opening)
      if (start < 0) {
        // The end may be the beginning of a tag.
        rest = rest.slice(Math.max(0, rest.length - name.length - 2))
        break
      }
      const end = endOf(rest, start, closing)
      if (end < 0) {
        rest = rest.slice(start)
        if (rest.length > elementCharsMax)
          throw new Malformed('xlsx', 0, `A <${name}> of the workbook has more than ${elementCharsMax} characters.`)
        break
      }
      yield rest.slice(start, end)
      rest = rest.slice(end)
    }
  }
}

/** Where the element that starts here ends; -1 when its end has not come yet. */
function endOf(text: string, start: number, closing: string): number {
  const tagEnd = text.indexOf('>', start)
  if (tagEnd < 0) return -1
  if (text[tagEnd - 1] === '/') return tagEnd + 1
  const end = text.indexOf(closing, tagEnd)
  return end < 0 ? -1 : end + closing.length
}

export function attribute(xml: string, name: string): string | undefined {
  const tag = xml.slice(0, xml.indexOf('>') + 1 || xml.length)
  return new RegExp(`\\s${name}="([^"]*)"`).exec(tag)?.[1]
}

/** The text of all elements with this name inside, joined: rich text is in several. */
export function elementText(xml: string, name: string): string {
  let text = ''
  for (const [, inner] of xml.matchAll(new RegExp(`<${name}(?:\\s[^>]*)?>([\\s\\S]*?)</${name}>`, 'g'))) text += inner
  return unescapeXml(text)
}

const named: Readonly<Record<string, string>> = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'" }

export function unescapeXml(text: string): string {
  if (!text.includes('&')) return text
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w+));/gi, (whole, decimal?: string, hex?: string, name?: string) => {
    if (name !== undefined) return named[name] ?? whole
    const code = decimal === undefined ? Number.parseInt(hex!, 16) : Number(decimal)
    return code <= 0x10ffff ? String.fromCodePoint(code) : whole
  })
}

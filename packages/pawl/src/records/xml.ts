// As much XML as a workbook needs: the elements of one name out of a stream, their attributes, and the text inside. No entities but the five
// of XML and numbers are known, so none can grow.

import { Malformed } from './bytes.ts'

const elementCharsMax = 4_000_000

/**
 * The texts of all elements with this name, one after another, whatever the chunks are, and without the prefix that a namespace may have given
 * their tags. They must not be nested in themselves.
 */
export async function* elements(chunks: AsyncIterable<Buffer>, name: string): AsyncGenerator<string> {
  const decoder = new TextDecoder('utf-8')
  const opening = new RegExp(`<([\\w.-]+:)?${name}(?=[\\s/>])`)
  let rest = ''
  for await (const chunk of chunks) {
    rest += decoder.decode(chunk, { stream: true })
    for (;;) {
      const found = opening.exec(rest)
      if (found === null) {
        // The end may be the beginning of a tag.
        const tag = rest.lastIndexOf('<')
        rest = tag < 0 || rest.includes('>', tag) ? '' : rest.slice(tag)
      }
      const prefix = found?.[1] ?? ''
      const end = found === null ? -1 : endOf(rest, found.index, `</${prefix}${name}>`)
      if (end < 0) {
        rest = rest.slice(found?.index ?? 0)
        if (rest.length > elementCharsMax)
          throw new Malformed('xlsx', 0, `A <${name}> of the workbook has more than ${elementCharsMax} characters.`)
        break
      }
      const text = rest.slice(found!.index, end)
      yield prefix === '' ? text : text.replaceAll(`<${prefix}`, '<').replaceAll(`</${prefix}`, '</')
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

/** An attribute of the first tag, with or without a prefix. */
export function attribute(xml: string, name: string): string | undefined {
  const tag = xml.slice(0, xml.indexOf('>') + 1 || xml.length)
  const found = new RegExp(`\\s(?:[\\w.-]+:)?${name}\\s*=\\s*(?:"([^"]*)"|'([^']*)')`).exec(tag)
  return found?.[1] ?? found?.[2]
}

/** The text of all elements with this name inside, joined: rich text is in several. */
export function elementText(xml: string, name: string): string {
  let text = ''
  for (const [, inner] of xml.matchAll(new RegExp(`<${name}(?:\\s(?:[^>]*[^/>])?)?>([\\s\\S]*?)</${name}>`, 'g'))) text += inner
  return unescapeXml(text)
}

const named: ReadonlyMap<string, string> = new Map(Object.entries({ amp: '&', lt: '<', gt: '>', quot: '"', apos: "'" }))

export function unescapeXml(text: string): string {
  if (!text.includes('&')) return text
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w+));/gi, (whole, decimal?: string, hex?: string, name?: string) => {
    if (name !== undefined) return named.get(name) ?? whole
    const code = decimal === undefined ? Number.parseInt(hex!, 16) : Number(decimal)
    return code <= 0x10ffff ? String.fromCodePoint(code) : whole
  })
}

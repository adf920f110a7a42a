// What a workbook says about its sheets before the first row: their names and parts, the shared strings, and what numbers mean by their style.

import { posix } from 'node:path'
import type { InvalidFile } from '../bytes.ts'
import { type CellContext, unescaped } from './cells.ts'
import { builtInKind, kindOf, type NumberKind } from './number-formats.ts'
import { attributeOf, readXml, type Shape } from './xml.ts'
import { notWorkbook, type Parts, tooLarge } from './zip.ts'

export interface Sheet {
  readonly name: string
  readonly path: string
}

export interface Workbook extends CellContext {
  readonly sheets: readonly Sheet[]
}

/** More relationships, styles or formats than any program writes. */
const listMax = 100_000
/** What a string needs in memory besides its characters. */
const stringBytes = 32

interface Relationship {
  readonly type: string
  readonly path: string
}

export interface WorkbookLimits {
  readonly sharedStringsBytesMax: number
  /** Of its zip file: each sheet is one. */
  readonly entriesMax: number
  /** Characters of a part without a tag between them. */
  readonly partCharsMax: number
}

export async function readWorkbook(parts: Parts, limits: WorkbookLimits): Promise<Workbook> {
  const charsMax = limits.partCharsMax
  const root = await readRelationships(parts, '', charsMax)
  const path = pathOf(root, 'officeDocument') ?? 'xl/workbook.xml'
  const relationships = await readRelationships(parts, path, charsMax)
  const { sheets, is1904 } = await readSheets(parts, path, relationships, limits)
  const stylesPath = pathOf(relationships, 'styles') ?? 'xl/styles.xml'
  const stringsPath = pathOf(relationships, 'sharedStrings') ?? 'xl/sharedStrings.xml'
  return {
    sheets,
    is1904,
    kinds: parts.has(stylesPath) ? await readKinds(parts, stylesPath, charsMax) : [],
    strings: parts.has(stringsPath) ? await readStrings(parts, stringsPath, limits.sharedStringsBytesMax, charsMax) : [],
  }
}

/** Of the package ('') or of a part, by their ids. */
async function readRelationships(parts: Parts, source: string, charsMax: number): Promise<Map<string, Relationship>> {
  const path = posix.join(posix.dirname(source), '_rels', `${posix.basename(source)}.rels`)
  const found = new Map<string, Relationship>()
  if (!parts.has(path)) return found
  const relationship: Shape = {
    open({ Id = '', Type = '', Target = '', TargetMode }) {
      if (TargetMode === 'External') return
      const target = posix.join(Target.startsWith('/') ? '' : posix.dirname(source), Target).replace(/^\//, '')
      found.set(Id, { type: Type, path: target })
      assertList(found.size, 'relationships')
    },
  }
  await readXml(parts.read(path), path, { Relationships: { inside: { Relationship: relationship } } }, charsMax)
  return found
}

function pathOf(relationships: ReadonlyMap<string, Relationship>, type: string): string | undefined {
  return [...relationships.values()].find((each) => each.type.endsWith(`/${type}`))?.path
}

async function readSheets(
  parts: Parts,
  path: string,
  relationships: ReadonlyMap<string, Relationship>,
  { entriesMax, partCharsMax }: WorkbookLimits,
): Promise<{ sheets: Sheet[]; is1904: boolean }> {
  const sheets: Sheet[] = []
  let is1904 = false
  const inside: Record<string, Shape> = {
    workbookPr: {
      open: ({ date1904 = '' }) => {
        is1904 = date1904 === '1' || date1904 === 'true'
      },
    },
    sheets: {
      inside: {
        sheet: {
          open(attributes) {
            const target = relationships.get(attributeOf(attributes, 'id') ?? '')
            // Sheets of charts and macros have no rows.
            if (target === undefined || !/^$|\/worksheet$/.test(target.type)) return
            sheets.push({ name: attributes.name ?? '', path: target.path })
            assertList(sheets.length, 'sheets', entriesMax)
          },
        },
      },
    },
  }
  await readXml(parts.read(path), path, { workbook: { inside } }, partCharsMax)
  if (sheets.length === 0) throw notWorkbook('it has no sheet with rows')
  assertNames(sheets)
  return { sheets, is1904 }
}

function assertNames(sheets: readonly Sheet[]): void {
  const names = new Set<string>()
  for (const { name } of sheets) {
    if (names.has(name)) throw notWorkbook(`it has two sheets named '${name.slice(0, 100)}'`)
    names.add(name)
  }
}

/** Cells refer to them by number, so they must all be in memory: they have a limit of their own. */
async function readStrings(parts: Parts, path: string, bytesMax: number, charsMax: number): Promise<string[]> {
  const strings: string[] = []
  let text = ''
  let bytes = 0
  const part: Shape = {
    text(found) {
      text += found
    },
  }
  const item: Shape = {
    // Runs of rich text, but not `rPh`, which says how the text is read aloud.
    inside: { t: part, r: { inside: { t: part } } },
    close() {
      bytes += stringBytes + 2 * text.length
      if (bytes > bytesMax) throw tooManyStrings(bytesMax)
      strings.push(detached(unescaped(text)))
      text = ''
    },
  }
  await readXml(parts.read(path), path, { sst: { inside: { si: item } } }, charsMax)
  return strings
}

/** A copy of its own: a part of the XML's text would keep all of that text in memory. */
function detached(text: string): string {
  return text.length < 13 ? text : ` ${text}`.slice(1)
}

function tooManyStrings(bytesMax: number): InvalidFile {
  return tooLarge(`The strings of the workbook need more than ${bytesMax} bytes of memory`, 'sharedStringsBytesMax')
}

async function readKinds(parts: Parts, path: string, charsMax: number): Promise<NumberKind[]> {
  const own = new Map<string, NumberKind>()
  const kinds: NumberKind[] = []
  const inside: Record<string, Shape> = {
    numFmts: {
      inside: {
        numFmt: {
          open({ numFmtId = '', formatCode = '' }) {
            own.set(numFmtId, kindOf(formatCode.slice(0, 1000)))
            assertList(own.size, 'number formats')
          },
        },
      },
    },
    cellXfs: {
      inside: {
        xf: {
          open({ numFmtId = '0' }) {
            kinds.push(own.get(numFmtId) ?? builtInKind(Number(numFmtId)))
            assertList(kinds.length, 'styles')
          },
        },
      },
    },
  }
  await readXml(parts.read(path), path, { styleSheet: { inside } }, charsMax)
  return kinds
}

function assertList(length: number, what: string, max = listMax): void {
  if (length > max) throw tooLarge(`The workbook has more than ${max} ${what}`)
}

// What tidy.test.ts and voice.test.ts measure in sources. All of it reads the layout that the formatter writes, so it needs no parser.

import { readdirSync, readFileSync } from 'node:fs'

const repository = new URL('../../../../', import.meta.url)

export const sourcePlaces = ['packages/pawl/src/', 'packages/server/src/', 'torture/', 'bench/', 'scripts/'] as const

/** Files in a folder of the repository, by their path in it. */
export function textsIn(place: string, pattern: RegExp): { file: string; text: string }[] {
  return readdirSync(new URL(place, repository), { recursive: true, encoding: 'utf8' })
    .map((file) => file.replaceAll('\\', '/'))
    .filter((file) => pattern.test(file) && !/(?:^|\/)(?:node_modules|dist)\//.test(file))
    .map((file) => ({ file: place + file, text: readFileSync(new URL(place + file, repository), 'utf8') }))
}

export function isTest(file: string): boolean {
  return /\.test\.ts$|\/test-support\//.test(file)
}

/** The code without its comments. */
export function codeOf(text: string): string {
  return text.replace(/\/\*[\s\S]*?\*\//g, '').replace(/^\s*\/\/.*$/gm, '')
}

/** The comments of TypeScript, or of SQL with `comment on`; each with its line breaks as spaces. */
export function commentsOf(file: string, text: string): string[] {
  const found = file.endsWith('.sql')
    ? text.match(/(?:^[ \t]*--.*\n?)+|--.*$|^comment on [\s\S]*?;$/gm)
    : text.match(/\/\*[\s\S]*?\*\/|(?:^[ \t]*\/\/.*\n?)+|(?<=[;,{})\]\w'"`] )\/\/ .*$/gm)
  return (found ?? []).map((comment) => comment.replace(/\s+(?:\/\/|--|\*(?!\/))?\s*/g, ' '))
}

/** Titles of tests, with `%s` and the like as they are. */
export function titlesOf(text: string): string[] {
  const title =
    /(?:\btest|\))\(\s*(?:'((?:[^'\\\n]|\\.)*)'|"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`),\s*(?:\{[^}]*\},\s*)?(?:async\b|\(|\w+ =>)/g
  return [...text.matchAll(title)].map(([, single, double, template]) => (single ?? double ?? template)!)
}

/** Ids of promises do not count. */
export function wordsOf(title: string): number {
  return title
    .replace(/\[[A-Z]+\d+\]/g, '')
    .trim()
    .split(/\s+/).length
}

/** Comments and string contents become spaces, so that offsets and line breaks stay. */
function blanked(text: string): string {
  const blank = (part: string) => part.replace(/[^\n]/g, ' ')
  return text.replace(
    /\/\*[\s\S]*?\*\/|\/\/[^\n]*|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|`(?:[^`\\$]|\\.|\$(?!\{))*`/g,
    (part) => (part.startsWith('/') ? blank(part) : `'${blank(part.slice(1, -1))}'`),
  )
}

export interface Measured {
  readonly name: string
  readonly count: number
}

/** Mutable fields per class: `#x = 1`, `x: T`, `x!: T`, `static x`, and parameter properties of the constructor. */
export function mutableFields(text: string): Measured[] {
  const lines = blanked(text).split('\n')
  return lines.flatMap((line, index) => {
    const [, indent, name] = /^(\s*)(?:.*[^\w.])?class(?:\s+(\w+))?[^;]*\{$/.exec(line) ?? []
    if (indent === undefined) return []
    const rest = lines.slice(index + 1)
    const body = rest.slice(
      0,
      rest.findIndex((each) => each.startsWith(`${indent}}`)),
    )
    const members = body
      .filter((each) => each.startsWith(`${indent}  `) && each[indent.length + 2] !== ' ')
      .map((each) => each.trim())
    const modifiers = '(?:(?:declare|private|protected|public|static|override|accessor) )*'
    const fields = members.filter((each) =>
      new RegExp(`^${modifiers}(?!readonly\\b)#?\\w+[?!]?(?::| =(?! (?:async )?\\(.*=>)|$)`).test(each),
    )
    const parameters = /\bconstructor\(([^{]*)\)\s*\{/.exec(body.join('\n'))?.[1] ?? ''
    const properties = parameters.match(/\b(?:private|protected|public)\s+(?!readonly\b)\w+/g) ?? []
    return [{ name: name ?? 'class', count: fields.length + properties.length }]
  })
}

interface Group {
  readonly line: number
  readonly names: Set<string>
  /** Not a class and not a destructuring. */
  readonly isPiece: boolean
}

/** The `on...` members of each interface, type, options object and parameter list, with the line on which it begins. */
function callbackGroups(text: string): Group[] {
  const code = blanked(text)
  const lines = code.split('\n')
  const groups: Group[] = []
  const open: Group[] = []
  let line = 1
  let start = 0
  for (let at = 0; at < code.length; at++) {
    const char = code[at]!
    if (char === '\n') {
      line++
      start = at + 1
    } else if (char === '{' || char === '(')
      open.push({
        line,
        names: new Set(),
        isPiece: !/(?:\b(?:const|let) |\bclass\b.*)$/.test(lines[line - 1]!.slice(0, at - start)),
      })
    else if (char === '}' || char === ')') {
      const closed = open.pop()
      if (closed?.isPiece && closed.names.size > 0) groups.push(closed)
    } else if (/[{(,;\n] *(?:readonly )?$/.test(code.slice(Math.max(0, at - 40), at))) {
      const [, name] = /^(on[A-Z]\w*)(?:\??:|,|\s*[})]|\??(?:<[^>]*>)?\([^\n]*(?:\): |\{$))/m.exec(code.slice(at, at + 200)) ?? []
      if (name !== undefined) open.at(-1)?.names.add(name)
    }
  }
  return groups
}

/** How many `on...` members each piece has; a piece without one is not listed. */
export function callbacksOf(text: string): Measured[] {
  const lines = text.split('\n')
  return callbackGroups(text).map(({ line, names }) => ({ name: lines[line - 1]!.trim(), count: names.size }))
}

export function callbackNames(text: string): string[] {
  return [...new Set(callbackGroups(text).flatMap(({ names }) => [...names]))]
}

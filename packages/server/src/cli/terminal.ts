// The output of a command: data on stdout in the format that was asked for, and words for people on stderr.

import { createInterface } from 'node:readline/promises'

export const outputs = ['table', 'json', 'jsonl'] as const
export type Output = (typeof outputs)[number]

export interface TerminalOptions {
  readonly output: Output
  readonly isQuiet: boolean
  readonly isVerbose: boolean
  /** false: --no-color was given. Without it a terminal decides. */
  readonly mayColour: boolean
}

export interface Column<Row> {
  readonly title: string
  readonly value: (row: Row) => string
  readonly isRight?: boolean
  readonly paint?: (row: Row) => Paint | undefined
}

const codes = { bold: 1, dim: 2, red: 31, green: 32, yellow: 33, cyan: 36 } as const
export type Paint = keyof typeof codes

type Stream = 'stdout' | 'stderr'

/** The streams that a command reads and writes: those of the process, or of a test that runs the command in its own process. */
export interface Streams {
  readonly stdin: NodeJS.ReadableStream & { readonly isTTY?: boolean }
  readonly stdout: NodeJS.WritableStream & { readonly isTTY?: boolean; readonly columns?: number }
  readonly stderr: NodeJS.WritableStream & { readonly isTTY?: boolean; readonly columns?: number }
}

export class Terminal {
  readonly options: TerminalOptions
  readonly streams: Streams
  readonly #hasColour: Readonly<Record<Stream, boolean>>

  constructor(options: TerminalOptions, streams: Streams) {
    this.options = options
    this.streams = streams
    const { mayColour } = options
    this.#hasColour = { stdout: mayColour && hasColour(streams.stdout), stderr: mayColour && hasColour(streams.stderr) }
  }

  get output(): Output {
    return this.options.output
  }

  get isVerbose(): boolean {
    return this.options.isVerbose
  }

  /** Whether a person can be asked something. */
  get canAsk(): boolean {
    return this.streams.stdin.isTTY === true && this.streams.stderr.isTTY === true
  }

  async confirms(question: string): Promise<boolean> {
    const reader = createInterface({ input: this.streams.stdin, output: this.streams.stderr })
    try {
      return /^y(es)?$/i.test((await reader.question(`${question} [y/N] `)).trim())
    } finally {
      reader.close()
    }
  }

  paint(text: string, paint: Paint | undefined, stream: Stream = 'stdout'): string {
    return paint === undefined || !this.#hasColour[stream] ? text : `\u001b[${codes[paint]}m${text}\u001b[0m`
  }

  /** One line of data. */
  line(text: string): void {
    this.streams.stdout.write(`${text}\n`)
  }

  /** One value as JSON: indented for `json`, on a line of its own for `jsonl`. */
  json(value: unknown): void {
    this.line(this.output === 'jsonl' ? JSON.stringify(value) : JSON.stringify(value, null, 2))
  }

  /** Words for a person; silent with -q. */
  say(text: string): void {
    if (!this.options.isQuiet) this.streams.stderr.write(`${text}\n`)
  }

  /** Like say, but -q does not silence it. */
  complain(text: string): void {
    this.streams.stderr.write(`${text}\n`)
  }

  /** Whether a status line can be redrawn. */
  get hasStatus(): boolean {
    return this.streams.stderr.isTTY === true && !this.options.isQuiet
  }

  /** Redraws the last line of a terminal, or clears it. */
  status(text: string): void {
    if (this.hasStatus) this.streams.stderr.write(`\r\u001b[K${clip(text, this.#room('stderr') - 1)}`)
  }

  table<Row>(columns: readonly Column<Row>[], rows: readonly Row[]): void {
    if (rows.length === 0) return
    const cells = rows.map((row) => columns.map((column) => oneLine(column.value(row))))
    const widths = columns.map((column, index) => Math.max(column.title.length, ...cells.map((line) => widthOf(line[index]!))))
    const room = this.#room()
    this.line(
      this.paint(
        layOut(
          columns.map(({ title }) => title.toLowerCase()),
          columns,
          widths,
          room,
        )
          .join('  ')
          .trimEnd(),
        'dim',
      ),
    )
    for (const [index, line] of cells.entries()) {
      const laidOut = layOut(line, columns, widths, room)
      this.line(
        laidOut
          .map((cell, at) => this.paint(cell, columns[at]!.paint?.(rows[index]!)))
          .join('  ')
          .trimEnd(),
      )
    }
  }

  /** Cut to the rest of the terminal's line, of which `taken` characters are used. Without a terminal nothing is cut. */
  clipped(text: string, taken: number): string {
    const room = this.#room()
    return room === Number.POSITIVE_INFINITY ? text : clip(text, Math.max(10, room - taken))
  }

  /** Broken between words, further lines indented. Without a terminal it stays one line. */
  wrapped(text: string, indent: number, stream: Stream = 'stdout'): string {
    const room = Math.max(20, this.#room(stream) - indent)
    const lines: string[] = []
    for (const word of text.split(' ')) {
      const last = lines.at(-1)
      if (last === undefined || widthOf(last) + 1 + widthOf(word) > room) lines.push(word)
      else lines[lines.length - 1] = `${last} ${word}`
    }
    return lines.join(`\n${' '.repeat(indent)}`)
  }

  #room(stream: Stream = 'stdout'): number {
    const { isTTY, columns } = this.streams[stream]
    return isTTY === true && columns !== undefined ? columns : Number.POSITIVE_INFINITY
  }

  /** Names and values, one pair a line, aligned. */
  pairs(pairs: readonly (readonly [name: string, value: string, paint?: Paint | undefined])[]): void {
    for (const line of this.alignedPairs(pairs)) this.line(line)
  }

  alignedPairs(
    pairs: readonly (readonly [name: string, value: string, paint?: Paint | undefined])[],
    stream: Stream = 'stdout',
  ): string[] {
    const width = Math.max(0, ...pairs.map(([name]) => name.length))
    return pairs.map(([name, value, paint]) => {
      const wrapped = this.wrapped(value, width + 2, stream)
      return `${this.paint(name.padEnd(width), 'dim', stream)}  ${this.paint(wrapped, paint, stream)}`
    })
  }
}

/** Only the last column is cut when a terminal is too narrow. */
function layOut<Row>(
  cells: readonly string[],
  columns: readonly Column<Row>[],
  widths: readonly number[],
  room: number,
): string[] {
  const before = widths.slice(0, -1).reduce((sum, width) => sum + width + 2, 0)
  return cells.map((cell, index) => {
    if (index === cells.length - 1 && columns[index]!.isRight !== true) return clip(cell, Math.max(10, room - before))
    const padding = ' '.repeat(Math.max(0, widths[index]! - widthOf(cell)))
    return columns[index]!.isRight ? padding + cell : cell + padding
  })
}

function hasColour({ isTTY }: { readonly isTTY?: boolean }): boolean {
  return isTTY === true && !process.env.NO_COLOR && process.env.TERM !== 'dumb'
}

function widthOf(text: string): number {
  return [...text].length
}

function clip(text: string, width: number): string {
  return widthOf(text) <= width ? text : `${[...text].slice(0, width - 1).join('')}…`
}

/** Control characters in a job's data could move the cursor or recolour the screen. */
export function oneLine(text: string): string {
  return text.replace(/[\u0000-\u001f\u007f-\u009f]+/g, ' ').trim()
}

export function firstLine(text: string | null): string {
  return (text ?? '').split('\n')[0]!
}

/** '1 job', '2 jobs'. */
export function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`
}

/** '850ms', '12s', '3m', '5h', '2d': for ages and delays in tables. */
export function shortDuration(ms: number): string {
  const size = Math.abs(ms)
  if (size < 1000) return `${Math.round(size)}ms`
  if (size < 60_000) return `${Math.round(size / 1000)}s`
  if (size < 3_600_000) return `${Math.round(size / 60_000)}m`
  if (size < 48 * 3_600_000) return `${Math.round(size / 3_600_000)}h`
  return `${Math.round(size / 86_400_000)}d`
}

export function relativeTime(time: Date | null, now = Date.now()): string {
  if (time === null) return ''
  const ms = time.getTime() - now
  return ms > 500 ? `in ${shortDuration(ms)}` : `${shortDuration(Math.max(0, -ms))} ago`
}

/** 21:03:07.042, in this machine's zone. */
export function clockTime(time: Date): string {
  const two = (value: number): string => String(value).padStart(2, '0')
  return `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}.${String(time.getMilliseconds()).padStart(3, '0')}`
}

// Measures as a table for people and as one line for programs.

import type { Measure } from './measure.ts'

/** The agreed fields and no others. */
export function toJson(bench: string, measures: readonly Measure[]): string {
  return JSON.stringify({ bench, measures: measures.map(({ detail: _, ...fields }) => fields) })
}

export function toTable(measures: readonly Measure[]): string {
  const rows = measures.map((one) => [one.name, `${withSpread(one, own(one), one.pawl)} ${one.unit}`, verdict(one), one.bar])
  const widths = [0, 1, 2].map((column) => Math.max(...rows.map((row) => row[column]!.length)))
  const lines: string[] = []
  for (const [index, row] of rows.entries()) {
    lines.push(
      row
        .map((cell, column) => (column === 3 ? cell : cell.padEnd(widths[column]!)))
        .join('  ')
        .trimEnd(),
    )
    const one = measures[index]!
    const others = Object.entries({ ...one.peers, ...one.limits })
    const width = Math.max(0, ...others.map(([name]) => name.length))
    for (const [name, value] of others) lines.push(`    ${name.padEnd(width)}  ${against(one, name, value)}`.trimEnd())
    for (const note of one.detail.notes) lines.push(`    ${note}`)
  }
  return lines.join('\n')
}

function against(one: Measure, name: string, value: number | null): string {
  const ratio = one.ratios[name]
  return `${withSpread(one, name, value)}${ratio === undefined ? '' : `; pawl is ${shown(ratio)} x`}`
}

/** A measure without a bar is only stated. */
export function verdict({ bar, met }: Measure): string {
  return bar === '' ? '' : met ? 'met' : 'NOT MET'
}

/** The contender that is Pawl: its samples come first. */
export function own({ detail }: Measure): string {
  return Object.keys(detail.samples)[0] ?? 'pawl'
}

/** The median, and the lowest and highest round. */
export function withSpread({ detail }: Measure, contender: string, value: number | null): string {
  const samples = detail.samples[contender] ?? []
  if (samples.length < 2) return shown(value)
  return `${shown(value)} (${shown(Math.min(...samples))}–${shown(Math.max(...samples))})`
}

/** Two digits: rounds differ by more. */
export function shown(value: number | null): string {
  if (value === null) return '-'
  return Number(value.toPrecision(2)).toLocaleString('en', { maximumSignificantDigits: 2 })
}

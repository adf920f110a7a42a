// Measures as a table for people and as one line for programs.

import type { Measure } from './measure.ts'

/** The agreed fields and no others. */
export function toJson(bench: string, measures: readonly Measure[]): string {
  return JSON.stringify({ bench, measures: measures.map(({ detail: _, ...fields }) => fields) })
}

export function toTable(measures: readonly Measure[]): string {
  const rows = measures.map((one) => [one.name, `${shown(one.pawl)} ${one.unit}`, one.met ? 'met' : 'NOT MET', one.bar])
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

export function against(one: Measure, name: string, value: number | null): string {
  const ratio = one.ratios[name]
  return `${shown(value)}${ratio === undefined ? '' : ` (pawl is ${shown(ratio)} x)`}`
}

export function shown(value: number | null): string {
  if (value === null) return '-'
  return value.toLocaleString('en', { maximumFractionDigits: Math.abs(value) >= 100 ? 0 : 2 })
}

// What a measure reports, and how its bar is judged.

import type { Results } from '../rounds.ts'
import { rounded } from './stats.ts'

export interface Measure {
  readonly name: string
  readonly unit: string
  readonly better: 'higher' | 'lower'
  readonly pawl: number | null
  readonly peers: Readonly<Record<string, number | null>>
  readonly limits: Readonly<Record<string, number | null>>
  /** Pawl divided by each of them. */
  readonly ratios: Readonly<Record<string, number>>
  readonly bar: string
  readonly met: boolean
  /** Beside the agreed fields, for the results file and the page: how the samples spread, how noisy it was, what to know. */
  readonly detail: {
    readonly samples: Readonly<Record<string, readonly number[]>>
    readonly noise: number | undefined
    readonly notes: readonly string[]
    /** Of the run, written by `publish`: one with --only keeps what earlier ones found. */
    readonly commit?: string
    readonly date?: string
  }
}

/** One condition of a bar: on Pawl's own value, or on its ratio to a peer or limit. Without a value to judge it by, it is not met. */
export interface Bar {
  readonly atLeast?: number
  readonly atMost?: number
  readonly times?: string
  /** For conditions on something else, such as an even split. */
  readonly says?: string
  readonly isMet?: boolean
}

export interface MeasureOptions {
  readonly name: string
  readonly unit: string
  readonly better: 'higher' | 'lower'
  readonly results: Results
  readonly metric?: string
  /** The contender that is Pawl; 'pawl' unless told. */
  readonly pawl?: string
  readonly peers?: readonly string[]
  readonly limits?: readonly string[]
  readonly bars?: readonly Bar[]
  /** How conditions are joined: all of them unless told. */
  readonly join?: 'and' | 'or'
  readonly notes?: readonly string[]
}

export function measure(options: MeasureOptions): Measure {
  const { name, unit, better, results, metric, peers = [], limits = [], bars = [], join = 'and', notes = [] } = options
  const own = options.pawl ?? 'pawl'
  const value = results.value(own, metric)
  const others = [...peers, ...limits]
  const ratios: Record<string, number> = {}
  for (const other of others) {
    const theirs = results.value(other, metric)
    if (value !== null && theirs !== null && theirs !== 0) ratios[other] = rounded(value / theirs)
  }
  const judged = bars.map((bar) => isMet(bar, value, ratios))
  return {
    name,
    unit,
    better,
    pawl: value,
    peers: Object.fromEntries(peers.map((peer) => [peer, results.value(peer, metric)])),
    limits: Object.fromEntries(limits.map((limit) => [limit, results.value(limit, metric)])),
    ratios,
    bar: bars.map(textOf).join(join === 'and' ? '; ' : ' or '),
    met: value !== null && (join === 'and' ? judged.every(Boolean) : judged.some(Boolean)),
    detail: {
      samples: Object.fromEntries(
        [own, ...others].map((contender) => [contender, results.samples(contender, metric).map(rounded)]),
      ),
      noise: results.noise === undefined ? undefined : rounded(results.noise),
      notes: [...notes, ...[own, ...others].flatMap((contender) => failureOf(results, contender))],
    },
  }
}

function failureOf(results: Results, contender: string): string[] {
  const why = results.failures.get(contender)
  return why === undefined ? [] : [`${contender} was not measured: ${why.split('\n')[0]}`]
}

function isMet(bar: Bar, value: number | null, ratios: Readonly<Record<string, number>>): boolean {
  if (bar.isMet !== undefined) return bar.isMet
  const judged = bar.times === undefined ? value : ratios[bar.times]
  if (judged === null || judged === undefined) return false
  return (bar.atLeast === undefined || judged >= bar.atLeast) && (bar.atMost === undefined || judged <= bar.atMost)
}

function textOf(bar: Bar): string {
  if (bar.says !== undefined) return bar.says
  const limit = bar.atLeast === undefined ? `<= ${bar.atMost}` : `>= ${bar.atLeast}`
  return bar.times === undefined ? limit : `${limit} x ${bar.times}`
}

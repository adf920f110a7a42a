import { expect } from 'vitest'
import type { CliEnd } from './cli.ts'

interface Diagnosis {
  readonly faults: number
  readonly checks: readonly { readonly check: string; readonly state: string; readonly what: string; readonly fix?: string }[]
}

/** The faults that `doctor -o json` found, each as "check: what -> fix"; the exit code must agree with them. */
export function faultsIn({ code, stdout, stderr }: CliEnd): string[] {
  const { faults: count, checks } = JSON.parse(stdout || `{"error": ${JSON.stringify(stderr)}}`) as Diagnosis
  const found = checks.filter(({ state }) => state === 'fault')
  expect({ code, count }).toEqual({ code: found.length > 0 ? 6 : 0, count: found.length })
  for (const { fix } of found) expect(fix).toBeTruthy()
  return found.map(({ check, what, fix }) => `${check}: ${what} -> ${fix}`)
}

// The command line of torture. A wrong call has an exit code of its own.

import { parseArgs } from 'node:util'

/** The command was called wrongly: nothing was played. */
export class WrongCall extends Error {}

export const usage = `npm run torture -- SCENARIO [--seed N] [--seconds S] [--json] [--plan FILE] [--keep]
npm run torture -- [SCENARIO] --canary NAME [--seed N] [--seconds S] [--json]
npm run torture -- [SCENARIO] --minimise PLAN [--canary NAME] [--tries N] [--json]
npm run torture -- [SCENARIO] matrix [PROBE] [--only KIND] [--hit N] [--sample N --seed N] [--json]
npm run torture -- [SCENARIO] directed [STORY] [--json]
npm run torture -- [SCENARIO] --list-canaries`

const verbs = ['matrix', 'directed'] as const
const isVerb = (text: string | undefined): text is (typeof verbs)[number] => verbs.includes(text as 'matrix')

export type Call = ReturnType<typeof readCall>

export function readCall(args: readonly string[]) {
  const { values, positionals } = parse(args)
  const scenario = isVerb(positionals[0]) ? undefined : positionals[0]
  const [verb, subject, ...rest] = scenario === undefined ? positionals : positionals.slice(1)
  if (rest.length > 0 || (verb !== undefined && !isVerb(verb)))
    throw new WrongCall(`Unknown argument '${rest[0] ?? verb}'.\n${usage}`)
  const call = {
    verb: values['list-canaries'] ? 'list canaries' : (verb ?? verbOf(values)),
    scenario,
    /** The probe of a matrix, or the story to play. */
    subject,
    seed: whole('seed', values.seed, 0),
    seconds: whole('seconds', values.seconds, 1),
    json: values.json,
    keep: values.keep,
    plan: values.minimise ?? values.plan,
    canary: values.canary,
    only: values.only,
    hit: values.hit === undefined ? undefined : whole('hit', values.hit, 1),
    sample: values.sample === undefined ? undefined : whole('sample', values.sample, 1),
    tries: whole('tries', values.tries, 1),
  } as const
  if (call.verb === 'storm' && scenario === undefined && call.plan === undefined) throw new WrongCall(usage)
  return call
}

function verbOf({ minimise, canary }: { minimise?: string; canary?: string }): 'minimise' | 'storm' | 'canary' {
  if (minimise !== undefined) return 'minimise'
  return canary === undefined ? 'storm' : 'canary'
}

function parse(args: readonly string[]) {
  const text = { type: 'string' } as const
  const flag = { type: 'boolean', default: false } as const
  const or = (value: string) => ({ type: 'string', default: value }) as const
  const counts = { seed: or('1'), seconds: or('30'), tries: or('3'), hit: text, sample: text }
  const names = { plan: text, canary: text, minimise: text, only: text }
  try {
    const options = { ...counts, ...names, json: flag, keep: flag, 'list-canaries': flag }
    return parseArgs({ args: [...args], allowPositionals: true, options })
  } catch (error) {
    throw new WrongCall(`${(error as Error).message.split('. ')[0]}.\n${usage}`)
  }
}

function whole(name: string, text: string, min: number): number {
  const number = Number(text)
  if (Number.isSafeInteger(number) && number >= min && text.trim() !== '') return number
  throw new WrongCall(`--${name} must be an integer from ${min}, got '${text}'.`)
}

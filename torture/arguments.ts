// What the command was asked for. Anything that cannot be meant is a wrong call, which is told apart from a violation by its exit code.

import { parseArgs } from 'node:util'
/** The command was called wrongly: nothing was played. Its exit code tells it from a violation. */
export class WrongCall extends Error {}

export const usage = `npm run torture -- SCENARIO [--seed N] [--seconds S] [--json] [--plan FILE] [--keep]
npm run torture -- [SCENARIO] --canary NAME [--seed N] [--seconds S] [--json]
npm run torture -- [SCENARIO] --minimise PLAN [--canary NAME] [--tries N] [--json]
npm run torture -- [SCENARIO] matrix [PROBE] [--only KIND] [--hit N] [--sample N --seed N] [--json]
npm run torture -- [SCENARIO] directed [STORY] [--json]
npm run torture -- [SCENARIO] --list-canaries`

const verbs = ['matrix', 'directed'] as const
export type Verb = (typeof verbs)[number] | 'storm' | 'canary' | 'minimise' | 'list canaries'

export interface Call {
  readonly verb: Verb
  readonly scenario: string | undefined
  /** The probe of a matrix, or the story to play. */
  readonly subject: string | undefined
  readonly seed: number
  readonly seconds: number
  readonly json: boolean
  readonly keep: boolean
  readonly plan: string | undefined
  readonly canary: string | undefined
  readonly only: string | undefined
  readonly hit: number | undefined
  readonly sample: number | undefined
  readonly tries: number
}

export function readCall(args: readonly string[]): Call {
  const { values, positionals } = parse(args)
  const isVerb = (text: string | undefined): text is (typeof verbs)[number] => verbs.includes(text as 'matrix')
  const scenario = isVerb(positionals[0]) ? undefined : positionals[0]
  const [named, subject, ...rest] = scenario === undefined ? positionals : positionals.slice(1)
  if (rest.length > 0 || (named !== undefined && !isVerb(named)))
    throw new WrongCall(`'${rest[0] ?? named}' means nothing here.\n${usage}`)
  const verb = verbOf(values, named)
  if (verb === 'storm' && scenario === undefined && values.plan === undefined) throw new WrongCall(usage)
  return {
    verb,
    scenario,
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
  }
}

function parse(args: readonly string[]) {
  try {
    return parseArgs({
      args: [...args],
      allowPositionals: true,
      options: {
        seed: { type: 'string', default: '1' },
        seconds: { type: 'string', default: '30' },
        json: { type: 'boolean', default: false },
        keep: { type: 'boolean', default: false },
        plan: { type: 'string' },
        canary: { type: 'string' },
        minimise: { type: 'string' },
        tries: { type: 'string', default: '3' },
        only: { type: 'string' },
        hit: { type: 'string' },
        sample: { type: 'string' },
        'list-canaries': { type: 'boolean', default: false },
      },
    })
  } catch (error) {
    throw new WrongCall(`${(error as Error).message.split('. ')[0]}.\n${usage}`)
  }
}

function verbOf(values: ReturnType<typeof parse>['values'], named: (typeof verbs)[number] | undefined): Verb {
  if (values['list-canaries']) return 'list canaries'
  if (named !== undefined) return named
  if (values.minimise !== undefined) return 'minimise'
  return values.canary === undefined ? 'storm' : 'canary'
}

function whole(name: string, text: string, min: number): number {
  const number = Number(text)
  if (!Number.isSafeInteger(number) || number < min || text.trim() === '')
    throw new WrongCall(`--${name} is a whole number from ${min} on, and not '${text}'.`)
  return number
}

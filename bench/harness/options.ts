export interface Options {
  readonly isJson: boolean
  readonly isQuick: boolean
  /** Keep the results under bench/results/ and in docs/benchmarks.md. */
  readonly mayWrite: boolean
  readonly rounds: number
  readonly only: readonly string[]
}

export const usage = `usage: npm run bench -- jobs | events | projections | records | batches | documents | readers [--json] [--rounds N] [--only name,...] [--quick] [--write]
       npm run bench -- compare <commit> jobs | events | projections | records [--rounds N] [--quick]
       npm run bench -- page`

export function parseOptions(args: readonly string[]): Options {
  const flags = new Map<string, string>()
  for (let index = 0; index < args.length; index++) {
    const [name, given] = args[index]!.split('=', 2) as [string, string | undefined]
    if (['--json', '--quick', '--write'].includes(name)) flags.set(name, '')
    else if (['--rounds', '--only'].includes(name)) flags.set(name, given ?? args[++index] ?? '')
    else throw new Error(`There is no option ${name}.\n${usage}`)
  }
  const isQuick = flags.has('--quick')
  if (isQuick && flags.has('--write')) throw new Error('The results of --quick mean nothing, so --write does not keep them.')
  const rounds = Number(flags.get('--rounds') ?? (isQuick ? 1 : 5))
  if (!Number.isInteger(rounds) || rounds < 1) throw new Error(`--rounds must be a whole number from 1.\n${usage}`)
  // The comma in '150,000 rows' separates nothing.
  const only = (flags.get('--only') ?? '').split(/,(?!\d{3}\b)/).map((name) => name.trim())
  return {
    isJson: flags.has('--json'),
    isQuick,
    mayWrite: flags.has('--write'),
    rounds,
    only: only.filter((name) => name !== ''),
  }
}

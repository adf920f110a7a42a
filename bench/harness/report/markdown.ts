import type { Measure } from './measure.ts'
import type { Published } from './publish.ts'
import { own, shown, withSpread } from './report.ts'

export const olderThanCode = '**Older than the code**: Pawl has changed since this was measured.'

export function toMarkdown({ machine, releases, measures }: Published, isOld: boolean): string {
  const used = Object.entries(releases).map(([name, version]) => `${name} ${version}`)
  return [
    ...(isOld ? [olderThanCode, ''] : []),
    `${machine.cores} cores (${machine.cpu}), ${machine.memoryGb} GB, ${machine.system}. Medians, and the lowest and highest round in brackets.`,
    `Releases: ${used.join(', ')}. Pawl: ${runsOf(measures)}.`,
    '',
    '| measure | Pawl | beside it, with the ratio of Pawl to it | bar | met |',
    '|---|---|---|---|---|',
    ...measures.map(row),
    '',
    ...measures.flatMap(notes),
  ].join('\n')
}

/** Which commit was measured when; a run with --only leaves several. */
function runsOf(measures: readonly Measure[]): string {
  const runs = new Map<string, string[]>()
  for (const { name, detail } of measures) {
    const run = `commit ${detail.commit ?? 'unknown'} on ${detail.date}`
    runs.set(run, [...(runs.get(run) ?? []), `\`${name}\``])
  }
  if (runs.size === 1) return [...runs.keys()][0]!
  return [...runs].map(([run, names]) => `${run} for ${names.join(', ')}`).join('; ')
}

function row(one: Measure): string {
  const others = Object.entries({ ...one.peers, ...one.limits }).map(([name, value]) => {
    const ratio = one.ratios[name]
    return `${name} ${withSpread(one, name, value)}${ratio === undefined ? '' : `: **${shown(ratio)}**`}`
  })
  const met = one.bar === '' ? '' : one.met ? 'yes' : '**no**'
  return `| \`${one.name}\`, ${one.unit} | **${shown(one.pawl)}**${withSpread(one, own(one), one.pawl).slice(shown(one.pawl).length)} | ${others.join('<br>')} | ${one.bar} | ${met} |`
}

function notes(one: Measure): string[] {
  const { notes: told, noise, samples } = one.detail
  const rounds = samples[own(one)]?.length ?? 0
  const how = `${rounds} ${rounds === 1 ? 'round' : 'rounds'}${noise === undefined ? '' : `, others used ${shown(noise)} % of the machine`}`
  return [`- \`${one.name}\`: ${[...told, how].join('; ')}.`]
}

import type { Measure } from './measure.ts'
import type { Published } from './publish.ts'
import { shown } from './report.ts'

export function toMarkdown({ date, rounds, machine, releases, measures }: Published): string {
  const used = Object.entries(releases).map(([name, version]) => `${name} ${version}`)
  return [
    `${date}, ${machine.cores} cores (${machine.cpu}), ${machine.memoryGb} GB, ${machine.system}. Median of ${rounds} interleaved rounds (3 for the long measures).`,
    `Releases: ${used.join(', ')}. Pawl: ${commitText(measures)}.`,
    '',
    '| measure | Pawl | beside it (Pawl is so many times that) | bar | met |',
    '|---|---|---|---|---|',
    ...measures.map(row),
    '',
    ...measures.flatMap(notes),
  ].join('\n')
}

function commitText(measures: readonly Measure[]): string {
  const commits = [...new Set(measures.map(({ detail }) => detail.commit))]
  const named = commits.map((commit) => {
    if (commit === undefined) return 'a commit that was not stored'
    if (commits.length === 1) return `commit ${commit}`
    const of = measures.filter(({ detail }) => detail.commit === commit).map(({ name }) => `\`${name}\``)
    return `commit ${commit} for ${of.join(', ')}`
  })
  return named.join('; ')
}

function row(one: Measure): string {
  const others = Object.entries({ ...one.peers, ...one.limits }).map(([name, value]) => {
    const ratio = one.ratios[name]
    return `${name} ${shown(value)}${ratio === undefined ? '' : ` (**${shown(ratio)}**)`}`
  })
  return `| \`${one.name}\`, ${one.unit} | **${shown(one.pawl)}** | ${others.join('<br>')} | ${one.bar} | ${one.met ? 'yes' : '**no**'} |`
}

function notes(one: Measure): string[] {
  const spread = Object.entries(one.detail.samples)
    .filter(([, values]) => values.length > 1)
    .map(([name, values]) => `${name} ${shown(Math.min(...values))}–${shown(Math.max(...values))}`)
  const noise = one.detail.noise === undefined ? '' : ` Others used ${shown(one.detail.noise)} % of the machine.`
  const lines = [...one.detail.notes, ...(spread.length === 0 ? [] : [`spread: ${spread.join(', ')}.${noise}`])]
  return lines.length === 0 ? [] : [`- \`${one.name}\`: ${lines.join('; ')}`]
}

// Keeps the results of a run: the file under results/ and the table of docs/benchmarks.md that is made from it.

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { cpus, release, totalmem } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { commitsSince, currentCommit } from './commit.ts'
import { toMarkdown } from './markdown.ts'
import type { Measure } from './measure.ts'

const bench = dirname(dirname(dirname(fileURLToPath(import.meta.url))))
const page = join(dirname(bench), 'docs', 'benchmarks.md')
const results = join(bench, 'results')
const fileOf = (name: string) => join(results, `${name}.json`)

export interface Published {
  readonly bench: string
  readonly machine: { readonly cpu: string; readonly cores: number; readonly memoryGb: number; readonly system: string }
  readonly releases: Readonly<Record<string, string>>
  readonly measures: readonly Measure[]
}

/** Measures that this run left out (--only) keep what an earlier one found; those that no longer exist go. */
export function publish(
  name: string,
  fresh: readonly Measure[],
  {
    servers,
    order,
    packages,
  }: {
    servers: Readonly<Record<string, string>>
    order: readonly string[]
    packages: readonly string[]
  },
): void {
  const file = fileOf(name)
  const commit = currentCommit()
  const run = { ...(commit === undefined ? {} : { commit }), date: new Date().toISOString().slice(0, 10) }
  const measured = fresh.map((one) => ({ ...one, detail: { ...one.detail, ...run } }))
  const kept = readEarlier(file).filter(
    (earlier) => order.includes(earlier.name) && !fresh.some((measure) => measure.name === earlier.name),
  )
  const published: Published = {
    bench: name,
    machine: {
      cpu: cpus()[0]?.model.trim() ?? 'unknown',
      cores: cpus().length,
      memoryGb: Math.round(totalmem() / 2 ** 30),
      system: `${process.platform} ${release()}`,
    },
    releases: { node: process.versions.node, ...servers, ...releasesOf(packages) },
    measures: [...kept, ...measured].sort((a, b) => order.indexOf(a.name) - order.indexOf(b.name)),
  }
  mkdirSync(dirname(file), { recursive: true })
  writeFileSync(file, `${JSON.stringify(published, null, 2)}\n`)
  refresh(published)
}

/** True if Pawl has changed since some of it was measured, or if this clone cannot tell. */
export function isOld({ measures }: Published, since = commitsSince): boolean {
  const commits = new Set(measures.map(({ detail }) => detail.commit))
  return [...commits].some((commit) => commit === undefined || since(commit) !== 0)
}

export function readPublished(): Published[] {
  return readdirSync(results).map((file) => JSON.parse(readFileSync(join(results, file), 'utf8')) as Published)
}

function readEarlier(file: string): readonly Measure[] {
  try {
    return (JSON.parse(readFileSync(file, 'utf8')) as Published).measures
  } catch {
    return []
  }
}

function releasesOf(packages: readonly string[]): Record<string, string> {
  const { dependencies, optionalDependencies } = JSON.parse(readFileSync(join(bench, 'package.json'), 'utf8')) as Record<
    string,
    Record<string, string>
  >
  return Object.fromEntries(
    Object.entries({ ...dependencies, ...optionalDependencies })
      .filter(([name]) => packages.includes(name))
      .sort(),
  )
}

/** Writes the table of stored results into the page again. */
export function refresh(published: Published): void {
  const { bench: name } = published
  const [begin, end] = [`<!-- bench ${name}: written by npm run bench -- ${name} --write -->`, `<!-- bench ${name}: end -->`]
  const text = readFileSync(page, 'utf8')
  const [from, to] = [text.indexOf(begin), text.indexOf(end)]
  if (from < 0 || to < from) throw new Error(`${page} has no place for the table: it needs the lines\n${begin}\n${end}`)
  writeFileSync(page, `${text.slice(0, from + begin.length)}\n${toMarkdown(published, isOld(published))}\n${text.slice(to)}`)
}

// Compiles a package as npm publishes it. Every source file becomes a CommonJS module with its declarations; each subpath of `exports` also
// gets an ES module that exports the same objects, so that an application that loads both ways has one Pawl and one PawlError.

import { chmodSync, cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join, posix, relative } from 'node:path'
import { build, type Metafile, type Plugin } from 'esbuild'
import { entriesOf, type PackageName, packageDir, readManifest, sourcesOf } from './exports.ts'
import { inlined } from './inline.ts'
import { type Ended, root, runNode } from './phase.ts'
import { filesUnder } from './results.ts'
import { bin } from './static-checks.ts'

/** Into the package itself, or, without types, into another folder, as the installed package has them. */
export async function compile(name: PackageName, target?: string): Promise<Ended> {
  const startedMs = performance.now()
  const dist = join(target ?? packageDir(name), 'dist')
  rmSync(dist, { recursive: true, force: true })
  const ended = target === undefined ? await declare(name, dist) : { name: `compile ${name}`, ok: true, output: '' }
  if (!ended.ok) return ended as Ended
  await emit(name, dist)
  if (target !== undefined) copyManifest(name, target)
  return { ...ended, ms: performance.now() - startedMs } as Ended
}

// ---- JavaScript

async function emit(name: PackageName, dist: string): Promise<void> {
  const source = join(packageDir(name), 'src')
  const newThread = name === 'pawl' ? await newThreadModule(dist) : ''
  const { outputFiles } = await build({
    entryPoints: sourcesOf(name),
    outbase: source,
    outdir: dist,
    outExtension: { '.js': '.cjs' },
    format: 'cjs',
    platform: 'node',
    target: 'node20',
    write: false,
    logLevel: 'error',
    plugins: [name === 'pawl' ? inlined(newThread) : located],
  })
  for (const { path, text } of outputFiles) write(path, text.replace(/\b(require|import)\("(\.[^"]+)\.ts"\)/g, '$1("$2.cjs")'))
  for (const entry of entriesOf(name)) writeModule(join(dist, entry.path))
  for (const command of Object.values(readManifest(name).bin ?? {})) chmodSync(join(dirname(dist), command), 0o755)
}

/** Only an ES module has `import.meta.url`. */
const located: Plugin = {
  name: 'located',
  setup(hooks) {
    hooks.onLoad({ filter: /\.ts$/ }, ({ path }) => {
      const address = 'require("node:url").pathToFileURL(__filename).href'
      return { contents: readFileSync(path, 'utf8').replaceAll('import.meta.url', address), loader: 'ts' }
    })
  },
}

/** The names are taken from the module itself: what it exports by `require` it exports by `import`. */
function writeModule(path: string): void {
  const names = Object.keys(createRequire(import.meta.url)(`${path}.cjs`) as object).sort()
  write(`${path}.js`, `import all from './${posix.basename(path)}.cjs'\n\nexport const {\n  ${names.join(',\n  ')},\n} = all\n`)
}

/**
 * The keeper's thread is the module beside. In a bundle there is none, so it is here again as one string, with pg inside: a thread that is
 * started from a string cannot tell where packages are.
 */
async function newThreadModule(dist: string): Promise<string> {
  const { outputFiles, metafile } = await build({
    entryPoints: [join(packageDir('pawl'), 'src', 'keeper-thread.ts')],
    bundle: true,
    format: 'cjs',
    platform: 'node',
    target: 'node20',
    external: ['pg-native'],
    minify: true,
    write: false,
    metafile: true,
    logLevel: 'error',
    plugins: [inlined('export const newThread = undefined', /^src\/(kernel|jobs)\//)],
  })
  writeLicenses(metafile, join(dist, 'third-party-licenses.txt'))
  return `import { basename, isAbsolute, join } from 'node:path'
import { Worker, type WorkerOptions } from 'node:worker_threads'

const bundled = ${JSON.stringify(outputFiles[0]!.text)}
const isFile = typeof __filename === 'string' && isAbsolute(__filename) && basename(__filename) === 'new-thread.cjs'

export function newThread(options: WorkerOptions): Worker {
  return isFile ? new Worker(join(__dirname, 'keeper-thread.cjs'), options) : new Worker(bundled, { ...options, eval: true })
}
`
}

/** Their licences ask to be kept with every copy. */
function writeLicenses(metafile: Metafile, to: string): void {
  const folders = new Set(Object.keys(metafile.inputs).flatMap((file) => /^.*node_modules\/(?:@[^/]+\/)?[^/]+/.exec(file) ?? []))
  const texts = [...folders].sort().map((folder) => {
    const { name, version, license } = JSON.parse(readFileSync(join(root, folder, 'package.json'), 'utf8'))
    const file = [...filesUnder(join(root, folder))].find((each) => /^licen[cs]e(\.\w+)?$/i.test(posix.basename(each)))
    return `${name} ${version} (${license})\n\n${file === undefined ? '' : readFileSync(file, 'utf8').trim()}`.trim()
  })
  const head = 'dist/new-thread.cjs has a copy of these packages inside, for applications that are bundled.'
  write(to, `${[head, ...texts].join(`\n\n${'-'.repeat(80)}\n\n`)}\n`)
}

// ---- declarations

/** tsc writes them for ES modules; those that can be reached from a subpath are kept, as declarations of CommonJS modules. */
async function declare(name: PackageName, dist: string): Promise<Ended> {
  const into = join(root, '.pawl', 'declarations', name)
  rmSync(into, { recursive: true, force: true })
  const project = join('scripts', `tsconfig.${name}.json`)
  const ended = await runNode({
    name: `compile ${name}`,
    args: [bin('typescript', 'tsc'), '-p', project, '--pretty', 'false', '--outDir', into],
  })
  if (!ended.ok) return ended
  const kept = new Set<string>()
  for (const { path } of entriesOf(name)) {
    keep(join(into, path), kept)
    write(join(dist, `${path}.d.ts`), `export * from './${posix.basename(path)}.cjs'\n`)
  }
  for (const path of kept) {
    const text = readFileSync(`${path}.d.ts`, 'utf8')
    write(join(dist, `${relative(into, path)}.d.cts`), text.replace(importPattern, '$1$2$3.cjs$2'))
  }
  return ended
}

const importPattern = /(\bfrom |\bimport\()(["'])(\.[^"']+)\.ts\2/g

function keep(path: string, kept: Set<string>): void {
  if (kept.has(path)) return
  kept.add(path)
  const text = readFileSync(`${path}.d.ts`, 'utf8')
  for (const [, , , to] of text.matchAll(importPattern)) keep(join(dirname(path), to!), kept)
}

// ---- files

function copyManifest(name: PackageName, target: string): void {
  cpSync(join(packageDir(name), 'package.json'), join(target, 'package.json'))
}

function write(path: string, text: string): void {
  mkdirSync(dirname(path), { recursive: true })
  writeFileSync(path, text)
}

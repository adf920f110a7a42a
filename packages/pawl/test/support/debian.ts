// Programs that tests need and npm does not have. What the machine has is used; else Debian's package is unpacked beside the repository's
// other scratch files, which needs no root and starts no service. Where that is not possible the answer says what is missing.

import { execFile } from 'node:child_process'
import { access, chmod, mkdir, mkdtemp, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'

const run = promisify(execFile)
const cache = fileURLToPath(new URL('../../../../.pawl/debian/', import.meta.url))

interface Wanted {
  readonly packages: readonly string[]
  /** The packages that they depend on which are unpacked with them. */
  readonly also: RegExp
  /** Where it is, in the root of the machine or of the unpacked packages; the architecture's folder is put in for *. */
  readonly file: string
}

/** The C library is the machine's own. */
const libraries = /^lib(?!c6$)/

const programs = {
  pgbouncer: { packages: ['pgbouncer'], also: libraries, file: '/usr/sbin/pgbouncer' },
  faketime: { packages: ['libfaketime'], also: libraries, file: '/usr/lib/*/faketime/libfaketimeMT.so.1' },
  // It works without lxml, which is compiled for one release of Python.
  openpyxl: {
    packages: ['python3-openpyxl'],
    also: /^python3-(?!lxml$)/,
    file: '/usr/lib/python3/dist-packages/openpyxl/__init__.py',
  },
} as const satisfies Record<string, Wanted>

export type DebianName = keyof typeof programs
export type DebianProgram =
  | {
      readonly ok: true
      readonly path: string
      /** For the libraries that came with it. */
      readonly env: Readonly<Record<string, string>>
    }
  | { readonly ok: false; readonly missing: string }

/** Finds or unpacks a program. PAWL_NO_DOWNLOADS=1 forbids the latter. */
export async function debianProgram(name: DebianName): Promise<DebianProgram> {
  const installed = await find('/', programs[name].file)
  if (installed !== undefined && name !== 'openpyxl') return { ok: true, path: installed, env: {} }
  const root = installed === undefined ? join(cache, name) : '/'
  try {
    if ((await find(root, programs[name].file)) === undefined) await unpack(name, root)
    const path = await find(root, programs[name].file)
    if (path === undefined) return { ok: false, missing: `${name}: Debian's package holds no ${programs[name].file}` }
    const env = name === 'openpyxl' ? pythonPath(root) : await libraryPath(root)
    const lacking = name === 'openpyxl' ? await missingModules(name, env) : await missingLibraries(path, env)
    return lacking.length === 0 ? { ok: true, path, env } : { ok: false, missing: `${name}: it lacks ${lacking.join(', ')}` }
  } catch (error) {
    return {
      ok: false,
      missing: `${name}: ${String((error as { stderr?: string }).stderr || (error as Error).message)
        .trim()
        .slice(-500)}`,
    }
  }
}

/** Called before a test run, so that no test waits for a download. Gives what is missing, one sentence each. */
export async function prepareDebianPrograms(): Promise<string[]> {
  const missing: string[] = []
  for (const name of Object.keys(programs) as DebianName[]) {
    const found = await debianProgram(name)
    if (!found.ok) missing.push(found.missing)
  }
  return missing
}

/** Unpacks into a folder of its own and gives it its name when it is whole: two processes at once do no harm. */
async function unpack(name: DebianName, root: string): Promise<void> {
  if (process.env.PAWL_NO_DOWNLOADS) throw new Error('it is not installed, and PAWL_NO_DOWNLOADS forbids to download it')
  const isDebian = /^ID(_LIKE)?=.*(debian|ubuntu)/m.test(await readFile('/etc/os-release', 'utf8').catch(() => ''))
  if (!isDebian) throw new Error('it is not installed, and this is not a Debian machine whose package could be unpacked')
  await mkdir(cache, { recursive: true })
  const staging = await mkdtemp(join(cache, `${name}.new-`))
  try {
    const apt = await ownApt(staging)
    await run('apt-get', [...apt, 'update', '-q'], { timeout: 180_000 })
    const packages = [...programs[name].packages, ...(await dependencies(apt, programs[name]))]
    await run('apt-get', [...apt, 'download', '-q', ...packages], { cwd: staging, timeout: 180_000 })
    const unpacked = join(staging, 'root')
    for (const file of (await readdir(staging)).filter((entry) => entry.endsWith('.deb')))
      await run('dpkg', ['-x', join(staging, file), unpacked])
    await rename(unpacked, root).catch(async (error: unknown) => {
      // Somebody else was quicker; theirs is as good.
      if ((await find(root, programs[name].file)) === undefined) throw error
    })
  } finally {
    await rm(staging, { recursive: true, force: true })
  }
}

/** apt with lists and cache of our own: the machine's may be empty, old, or not ours to write. */
async function ownApt(staging: string): Promise<string[]> {
  await Promise.all(
    ['lists/partial', 'archives/partial'].map((folder) => mkdir(join(staging, 'apt', folder), { recursive: true })),
  )
  const settings = {
    'Dir::State::lists': join(staging, 'apt/lists'),
    'Dir::Cache': join(staging, 'apt'),
    // As root, apt would download as another user, who cannot write here.
    'APT::Sandbox::User': '',
    'Acquire::http::Timeout': '20',
    'Acquire::Retries': '2',
  }
  const file = join(staging, 'apt.conf')
  await writeFile(
    file,
    Object.entries(settings)
      .map(([key, value]) => `${key} "${value}";\n`)
      .join(''),
  )
  await chmod(file, 0o644)
  return ['-c', file]
}

/** What the packages name themselves, as far as it is wanted. */
async function dependencies(apt: readonly string[], { packages, also }: Wanted): Promise<string[]> {
  const { stdout } = await run('apt-cache', [
    ...apt,
    'depends',
    '--no-recommends',
    '--no-suggests',
    '--no-conflicts',
    '--no-breaks',
    '--no-replaces',
    ...packages,
  ])
  const names = [...stdout.matchAll(/^ +(?:Pre)?Depends: ([a-z0-9.+-]+)$/gm)].map((match) => match[1]!)
  return [...new Set(names)].filter((name) => also.test(name) && !packages.includes(name))
}

async function find(root: string, file: string): Promise<string | undefined> {
  const folders = file.includes('*') ? await readdir(join(root, file.split('*')[0]!)).catch(() => []) : ['']
  for (const folder of folders) {
    const path = join(root, file.replace('*', folder))
    if (
      await access(path).then(
        () => true,
        () => false,
      )
    )
      return path
  }
  return undefined
}

async function libraryPath(root: string): Promise<Record<string, string>> {
  const folders: string[] = []
  for (const parent of ['usr/lib', 'lib']) {
    for (const folder of await readdir(join(root, parent)).catch(() => []))
      if (folder.includes('-linux-')) folders.push(join(root, parent, folder))
  }
  return folders.length === 0 ? {} : { LD_LIBRARY_PATH: folders.join(':') }
}

async function missingLibraries(path: string, env: Readonly<Record<string, string>>): Promise<string[]> {
  const { stdout } = await run('ldd', [path], { env: { ...process.env, ...env } })
  return [...stdout.matchAll(/^\s*(\S+) => not found/gm)].map((match) => match[1]!)
}

function pythonPath(root: string): Record<string, string> {
  return { PYTHONPATH: join(root, 'usr/lib/python3/dist-packages') }
}

async function missingModules(module: string, env: Readonly<Record<string, string>>): Promise<string[]> {
  const imported = run('python3', ['-c', `import ${module}`], { env: { ...process.env, ...env } })
  return imported.then(
    () => [],
    (error: Error) => [`a python3 that can import it (${error.message.trim().slice(-200)})`],
  )
}

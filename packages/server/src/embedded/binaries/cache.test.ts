import { execFile } from 'node:child_process'
import { chmod, chown, lstat, mkdir, readdir, readFile, readlink, rm, stat, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, describe, expect, test } from 'vitest'
import { Scratch } from '../test-support/scratch.ts'
import { accountForPostgres, isRoot } from './account.ts'
import { type CacheResult, ensureCopy } from './cache.ts'

const execFileText = promisify(execFile)
const scratch = new Scratch()
afterAll(() => scratch.clear())

const uid = process.getuid?.() ?? 0
const version = '18.0.0-test'

/** A package as npm unpacks it when install scripts are blocked: the links are only listed. */
async function makeSource(mode = 0o755): Promise<string> {
  const source = join(await scratch.dir(undefined, mode), 'native')
  await mkdir(join(source, 'bin'), { recursive: true })
  await mkdir(join(source, 'lib'))
  await writeFile(join(source, 'bin', 'postgres'), '#!/bin/sh\ncat "$(dirname "$0")/../lib/libpq.so.5"\n', { mode: 0o755 })
  await writeFile(join(source, 'lib', 'libpq.so.5.18'), 'the library')
  await writeFile(
    join(source, 'pg-symlinks.json'),
    JSON.stringify([{ source: 'native/lib/libpq.so.5.18', target: 'native/lib/libpq.so.5' }]),
  )
  return source
}

async function copyInto(parent: string, source: string): Promise<CacheResult> {
  return ensureCopy({ source, version, parent, reader: undefined })
}

function dirOf(result: CacheResult): string {
  if (!result.ok) throw new Error(result.why)
  return result.dir
}

test('links that a blocked install script omitted are made in the copy', async () => {
  const [parent, source] = [await scratch.dir(), await makeSource()]
  const dir = dirOf(await copyInto(parent, source))
  expect(await readlink(join(dir, 'lib', 'libpq.so.5'))).toBe('libpq.so.5.18')
  expect((await execFileText(join(dir, 'bin', 'postgres'))).stdout).toBe('the library')
  expect(await readdir(join(source, 'lib'))).toEqual(['libpq.so.5.18'])
})

test('two at once make one complete copy', async () => {
  const [parent, source] = [await scratch.dir(), await makeSource()]
  const results = await Promise.all([copyInto(parent, source), copyInto(parent, source), copyInto(parent, source)])
  expect(new Set(results.map(dirOf)).size).toBe(1)
  const names = await readdir(join(parent, `pawl-postgres-${uid}`))
  expect(names.filter((name) => !name.startsWith('lock.'))).toEqual([version])
})

test('a copy is used again, not made again', async () => {
  const [parent, source] = [await scratch.dir(), await makeSource()]
  const first = await stat(dirOf(await copyInto(parent, source)))
  expect((await stat(dirOf(await copyInto(parent, source)))).ino).toBe(first.ino)
})

test.each(['bin/postgres', 'lib/libpq.so.5', 'complete.json'])('a copy that has lost %s is made again', async (lost) => {
  const [parent, source] = [await scratch.dir(), await makeSource()]
  const dir = dirOf(await copyInto(parent, source))
  await rm(join(dir, lost))
  expect(dirOf(await copyInto(parent, source))).toBe(dir)
  expect((await execFileText(join(dir, 'bin', 'postgres'))).stdout).toBe('the library')
})

test('what a killed copier left is removed', async () => {
  const [parent, source] = [await scratch.dir(), await makeSource()]
  await mkdir(join(parent, `pawl-postgres-${uid}`, `${version}.part-dead`, 'bin'), { recursive: true })
  dirOf(await copyInto(parent, source))
  expect((await readdir(join(parent, `pawl-postgres-${uid}`))).sort()).toEqual([version, 'lock.1'])
})

describe('a folder that somebody else could have prepared is refused', () => {
  test('a link in its place', async () => {
    const [parent, source, theirs] = [await scratch.dir(), await makeSource(), await scratch.dir()]
    await symlink(theirs, join(parent, `pawl-postgres-${uid}`))
    expect(await copyInto(parent, source)).toMatchObject({ ok: false, why: expect.stringContaining('not a directory') })
    expect(await readdir(theirs)).toEqual([])
  })

  test('one that others can write to', async () => {
    const [parent, source] = [await scratch.dir(), await makeSource()]
    await mkdir(join(parent, `pawl-postgres-${uid}`))
    await chmod(join(parent, `pawl-postgres-${uid}`), 0o777)
    expect(await copyInto(parent, source)).toMatchObject({ ok: false, why: expect.stringContaining('by others') })
  })

  test.runIf(isRoot())('one that belongs to another user', async () => {
    const [parent, source] = [await scratch.dir(), await makeSource()]
    await mkdir(join(parent, `pawl-postgres-${uid}`))
    await chown(join(parent, `pawl-postgres-${uid}`), 65534, 65534)
    expect(await copyInto(parent, source)).toMatchObject({ ok: false, why: expect.stringContaining('belongs to uid 65534') })
  })

  test('a parent that others can write to without a sticky bit', async () => {
    const [parent, source] = [await scratch.dir(undefined, 0o777), await makeSource()]
    expect(await copyInto(parent, source)).toMatchObject({ ok: false, why: expect.stringContaining('sticky') })
  })
})

describe.runIf(isRoot())('for root', () => {
  test('a package under a 0700 home is copied for the account', async () => {
    const [parent, source, reader] = [await scratch.dir(), await makeSource(0o700), await accountForPostgres()]
    const umask = process.umask(0o077)
    const result = await ensureCopy({ source, version, parent, reader }).finally(() => process.umask(umask))
    const dir = dirOf(result)
    expect((await execFileText(join(dir, 'bin', 'postgres'), { ...reader, cwd: '/' })).stdout).toBe('the library')
    expect((await lstat(dir)).uid).toBe(0)
    expect(JSON.parse(await readFile(join(dir, 'complete.json'), 'utf8'))).toHaveProperty(['bin/postgres'])
  })

  test('a parent that this account cannot enter is refused', async () => {
    const [parent, source, reader] = [await scratch.dir(undefined, 0o700), await makeSource(), await accountForPostgres()]
    expect(await ensureCopy({ source, version, parent, reader })).toMatchObject({
      ok: false,
      why: expect.stringContaining('cannot enter'),
    })
  })
})

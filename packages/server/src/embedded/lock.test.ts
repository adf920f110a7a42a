import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, expect, onTestFinished, test } from 'vitest'
import { withLock } from './lock.ts'
import { startOf } from './processes.ts'
import { Scratch } from './test-support/scratch.ts'

const scratch = new Scratch()
afterAll(() => scratch.clear())

test('one of many runs at a time, and each runs once', async () => {
  const path = join(await scratch.dir(), 'lock')
  let inside = 0
  let turns = 0
  const contenders = Array.from({ length: 20 }, () =>
    withLock(path, { waitMs: 20_000 }, async () => {
      inside += 1
      expect(inside).toBe(1)
      await new Promise(setImmediate)
      inside -= 1
      turns += 1
    }),
  )
  await Promise.all(contenders)
  expect(turns).toBe(20)
})

test('of many that find a dead holder one takes over', async () => {
  const path = join(await scratch.dir(), 'lock')
  for (let round = 0; round < 8; round += 1) {
    await writeFile(`${path}.${round * 100 + 1}`, JSON.stringify({ pid: 2 ** 22 + 1, started: 'long ago' }))
    let inside = 0
    const contenders = Array.from({ length: 8 }, () =>
      withLock(path, { waitMs: 20_000 }, async () => {
        inside += 1
        expect(inside).toBe(1)
        await new Promise(setImmediate)
        inside -= 1
      }),
    )
    await Promise.all(contenders)
  }
})

test('a holder that was killed wedges nothing', async () => {
  const dir = await scratch.dir()
  const holder = await holdElsewhere(join(dir, 'lock'))
  const waitedFor: number[] = []
  const onWait = (pid: number): void => {
    waitedFor.push(pid)
    holder.kill('SIGKILL')
  }
  expect(await withLock(join(dir, 'lock'), { waitMs: 20_000, onWait }, async () => 'mine')).toBe('mine')
  expect(waitedFor).toEqual([holder.pid])
})

test('a pid that now belongs to a younger process holds nothing', async () => {
  const path = join(await scratch.dir(), 'lock')
  await writeFile(`${path}.7`, JSON.stringify({ pid: process.pid, started: 'before the last reboot' }))
  expect(await withLock(path, { waitMs: 0 }, async () => 'mine')).toBe('mine')
})

test('an empty lock file holds nothing and is removed', async () => {
  const dir = await scratch.dir()
  const path = join(dir, 'lock')
  await writeFile(`${path}.3`, '')
  await writeFile(`${path}.draft-of-a-killed-one`, '')
  expect(await withLock(path, { waitMs: 0 }, async () => 'mine')).toBe('mine')
  expect(await readdir(dir)).toEqual(['lock.4'])
})

test("a lock that stays held is reported with its holder's pid", async () => {
  const path = join(await scratch.dir(), 'lock')
  await writeFile(`${path}.1`, JSON.stringify({ pid: process.pid, started: await startOf(process.pid) }))
  await expect(withLock(path, { waitMs: 30 }, async () => 'mine')).rejects.toMatchObject({
    code: 'locked',
    message: expect.stringContaining(String(process.pid)),
  })
})

test('the lock is freed when the work throws; one small file stays', async () => {
  const dir = await scratch.dir()
  const path = join(dir, 'lock')
  await expect(withLock(path, { waitMs: 0 }, async () => Promise.reject(new Error('no luck')))).rejects.toThrow('no luck')
  await withLock(path, { waitMs: 0 }, async () => {})
  expect(await readdir(dir)).toEqual(['lock.2'])
  expect(await readFile(`${path}.2`, 'utf8')).toBe('{"free":true}')
})

async function holdElsewhere(path: string): Promise<ChildProcess> {
  const code = `import { withLock } from '${new URL('./lock.ts', import.meta.url).href}'
    await withLock('${path}', { waitMs: 0 }, () => new Promise(() => { console.log('held'); setInterval(() => {}, 1000) }))`
  const child = spawn(process.execPath, ['--import', 'tsx', '--input-type=module', '--eval', code], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  onTestFinished(() => void child.kill('SIGKILL'))
  await once(child.stdout!, 'data')
  return child
}

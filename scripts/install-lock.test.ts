import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'

async function scratch(): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'pawl-install-lock-'))
  onTestFinished(() => rm(dir, { recursive: true, force: true }))
  return dir
}

/** A process that runs this code with withInstallLock in scope. */
async function run(code: string): Promise<{ code: number | null; stderr: string }> {
  const module = new URL('./install-lock.mjs', import.meta.url).href
  const text = `import fs from 'node:fs'\nimport { syncBuiltinESMExports } from 'node:module'\nimport { withInstallLock } from '${module}'\n${code}`
  const child = spawn(process.execPath, ['--input-type=module', '--eval', text], { stdio: ['ignore', 'ignore', 'pipe'] })
  onTestFinished(() => void child.kill('SIGKILL'))
  let stderr = ''
  child.stderr.setEncoding('utf8').on('data', (said: string) => (stderr += said))
  await once(child, 'close')
  return { code: child.exitCode, stderr }
}

test('of two that find a dead holder only one takes the lock', async () => {
  const dir = await scratch()
  const path = join(dir, 'lock')
  await writeFile(`${path}.1`, JSON.stringify({ pid: 2 ** 22 + 1, started: 'long ago' }))
  // It stops after it has read the holder, until the other one has the lock.
  const slower = run(`
    for (const name of ['linkSync', 'rmSync']) {
      const real = fs[name]
      fs[name] = (...args) => {
        fs.writeFileSync('${dir}/decided', '')
        while (!fs.existsSync('${dir}/taken'));
        return real(...args)
      }
    }
    syncBuiltinESMExports()
    console.error = () => fs.writeFileSync('${dir}/waits', '')
    process.on('exit', () => fs.writeFileSync('${dir}/ended', ''))
    await withInstallLock('${path}', () => fs.mkdirSync('${dir}/inside'))`)
  const faster = run(`
    while (!fs.existsSync('${dir}/decided'));
    await withInstallLock('${path}', () => {
      fs.mkdirSync('${dir}/inside')
      fs.writeFileSync('${dir}/taken', '')
      while (!fs.existsSync('${dir}/waits') && !fs.existsSync('${dir}/ended'));
      fs.rmdirSync('${dir}/inside')
    })`)
  expect(await Promise.all([faster, slower])).toEqual([
    { code: 0, stderr: '' },
    { code: 0, stderr: '' },
  ])
})

test('a holder that was killed holds nothing, even with its pid reused', async () => {
  const dir = await scratch()
  const path = join(dir, 'made', 'lock')
  await run(`await withInstallLock('${path}', () => process.kill(process.pid, 'SIGKILL'))`)
  expect(await run(`await withInstallLock('${path}', () => undefined)`)).toEqual({ code: 0, stderr: '' })
  await writeFile(`${path}.9`, JSON.stringify({ pid: process.pid, started: 'before the last reboot' }))
  expect(await run(`await withInstallLock('${path}', () => undefined)`)).toEqual({ code: 0, stderr: '' })
  expect(await readdir(join(dir, 'made'))).toEqual(['lock.10'])
})

test('who waits says for whom, and comes next', async () => {
  const path = join(await scratch(), 'lock')
  const first = run(`await withInstallLock('${path}', () => {
    fs.writeFileSync('${path}-held', '')
    while (!fs.existsSync('${path}-waited-for'));
  })`)
  const second = run(`
    while (!fs.existsSync('${path}-held'));
    console.error = (text) => {
      process.stderr.write(text)
      fs.writeFileSync('${path}-waited-for', '')
    }
    await withInstallLock('${path}', () => undefined)`)
  expect((await first).code).toBe(0)
  expect(await second).toEqual({
    code: 0,
    stderr: expect.stringMatching(/^Process \d+ installs the dependencies, by .*lock\.1; waiting/),
  })
})

// The command as a process of its own: its exit code, its pipes and its terminal.

import type { Pawl } from 'pawl'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createDatabase, type TestDatabase } from '../../../pawl/test/support/database.ts'
import { pawl as cli, RunningCli } from './test-support/cli-process.ts'

let db: TestDatabase
let pawl: Pawl
let on: string[]
beforeAll(async () => {
  db = await createDatabase()
  pawl = db.pawl()
  on = ['--database-url', db.url]
})
afterAll(() => db.drop())

test('a process reads stdin, writes stdout and ends with its exit code', async () => {
  const added = await cli(['jobs', 'add', 'piped', '-', ...on], { input: '{"from": "stdin"}' })
  expect(added).toEqual({
    code: 0,
    stdout: expect.stringMatching(/^\d{19}\n$/),
    stderr: expect.stringContaining("No running worker works the queue 'default'"),
  })
  expect(await pawl.jobs.get(added.stdout.trim())).toMatchObject({ payload: { from: 'stdin' } })
  expect(await cli(['jobs', 'get', '12', ...on])).toEqual({
    code: 3,
    stdout: '',
    stderr: expect.stringContaining('PAWL_NOT_FOUND (exit 3)'),
  })
  const unknown = await cli(['jobs', 'lsit'])
  expect(unknown).toEqual({ code: 2, stdout: '', stderr: expect.stringContaining('Did you mean list') })
})

test('when the reader closes the pipe it ends with 0, silently', async () => {
  await pawl.jobs.enqueueMany(
    'many',
    Array.from({ length: 400 }, (_, n) => ({ n, text: 'x'.repeat(1000) })),
  )
  const list = await RunningCli.start(['jobs', 'list', '--kind', 'many', '--limit', '500', '-o', 'jsonl', ...on])
  list.child.stdout!.destroy()
  expect(await list.ended()).toEqual({ code: 0, stdout: '', stderr: '' })
})

test('dev ends with 5 when the given database cannot be reached', async () => {
  const { code, stdout, stderr } = await cli(['dev', '--database-url', 'postgres://pawl@localhost:1/x'])
  expect({ code, stdout }).toEqual({ code: 5, stdout: '' })
  expect(stderr).toMatch(
    /error +The database cannot be reached \(.*ECONNREFUSED.*\)\.\nnext .*\ncode +PAWL_UNAVAILABLE \(exit 5\)\n$/,
  )
})

describe('on a terminal', () => {
  test('only a terminal gets colours, unless NO_COLOR or --no-color is given', async () => {
    await pawl.jobs.enqueue('painted', {}, { delay: '1h' })
    const list = ['jobs', 'list', '--kind', 'painted', ...on]
    expect((await cli(list, { typed: '' })).stdout).toContain('\u001b[36mscheduled')
    expect((await cli([...list, '--no-color'], { typed: '' })).stdout).not.toContain('\u001b')
    expect((await cli(list, { typed: '', env: { NO_COLOR: '1' } })).stdout).not.toContain('\u001b')
    expect((await cli(list)).stdout).not.toContain('\u001b')
  })

  test('[S6] cancelling a running job asks on a terminal without -y', async () => {
    const own = db.pawl()
    own.jobs.define('long', { run: (_job, { signal }) => new Promise((resolve) => signal.addEventListener('abort', resolve)) })
    const worker = own.worker()
    await worker.start()
    try {
      const start = async (): Promise<string> => {
        const started = new Promise<string>((resolve) => own.on('job.started', ({ id }) => resolve(id)))
        await own.jobs.enqueue('long', {})
        return started
      }
      const asked = await start()
      const no = await cli(['jobs', 'cancel', asked, ...on], { typed: 'n\n' })
      expect(no.stdout).toContain('is running on worker')
      expect(await own.jobs.get(asked)).toMatchObject({ state: 'running' })
      await cli(['jobs', 'cancel', asked, ...on], { typed: 'y\n' })
      expect(await own.jobs.get(asked)).toMatchObject({ state: 'cancelled' })
      const unasked = await start()
      expect((await cli(['jobs', 'cancel', unasked, ...on])).stderr).toBe('')
      expect(await own.jobs.get(unasked)).toMatchObject({ state: 'cancelled' })
    } finally {
      await worker.stop()
    }
  })
})

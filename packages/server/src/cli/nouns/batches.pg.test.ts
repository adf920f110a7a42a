import { type BatchItem, type BatchReport, type Item, type JobContext, NonRetryable, type Pawl } from 'pawl'
import { moveClock } from 'pawl/testing'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { closed, files, startWorker } from '../../../../pawl/test/support/batches.ts'
import { createDatabase, type TestDatabase } from '../../../../pawl/test/support/database.ts'
import { pawl as cli, pawlJson } from '../test-support/cli.ts'

let db: TestDatabase
let pawl: Pawl
beforeEach(async () => {
  db = await createDatabase()
  pawl = db.pawl()
})
afterEach(() => db.drop())

const batches = (...args: string[]) => cli(['batches', ...args, '--database-url', db.url])
const json = <T>(...args: string[]) => pawlJson<T>(['batches', ...args, '--database-url', db.url])
type Page<T> = { items: T[]; next: string | null }

const define = (run: (item: Item, context: JobContext) => unknown = () => ({ records: 3 })) =>
  pawl.batches.define('reparse', { item: { retry: { attempts: 1 }, run } })

function failing({ n }: Item): { records: number } {
  if (n === 2) throw new Error('bad file')
  return { records: 3 }
}

test('[B4] get --watch waits for the end and exits by the outcome', async () => {
  define(failing)
  const { id } = await pawl.batches.start('reparse', files(3), { by: 'ada' })
  await startWorker(pawl)
  const { code, stdout, stderr } = await batches('get', id, '--watch')
  expect(code).toBe(1)
  expect(stdout).toMatch(/state +finished\nprogress +\[#{30}\] 3 of 3\ndone +2\nfailed +1\nsums +records 6\nby +ada\n/)
  expect(stderr).toContain(`1 item failed: pawl batches items ${id} --outcome failed`)
  const good = await pawl.batches.start('reparse', files(1))
  expect(await batches('get', good.id, '-w', '-o', 'json')).toMatchObject({
    code: 0,
    stdout: expect.stringMatching(/"isSuccess": true/),
  })
  expect(await batches('get', id)).toMatchObject({ code: 0 })
})

test('list and items print pages and tables', async () => {
  define(failing)
  const { id } = await pawl.batches.start('reparse', files(3))
  await startWorker(pawl)
  await closed(pawl, id)
  expect((await json<Page<BatchReport>>('list', '--name', 'reparse', '--state', 'finished')).items).toMatchObject([
    { id, total: 3 },
  ])
  expect((await batches('list', '--track', 'other')).stderr).toBe('No such batches.\n')
  expect((await batches('list')).stdout).toMatch(/^id .*\n\d{19} +reparse +reparse +finished +3 /)
  const first = await json<Page<BatchItem>>('items', id, '--limit', '2')
  expect(first.items.map(({ key, outcome }) => [key, outcome])).toEqual([
    ['file-1', 'done'],
    ['file-2', 'failed'],
  ])
  expect((await json<Page<BatchItem>>('items', id, '--after', first.next!)).items).toMatchObject([{ key: 'file-3' }])
  expect((await batches('items', id, '--outcome', 'failed')).stdout).toMatch(/2 +file-2 +failed .* bad file\n$/)
})

test('[B6] an end before the boundary: get and tables show restored items', async () => {
  const prepare = () => {
    throw new NonRetryable('no backup')
  }
  pawl.batches.define('reparse', { item: { run: () => undefined }, prepare, restore: () => undefined })
  const { id } = await pawl.batches.start('reparse', files(2))
  await startWorker(pawl)
  await closed(pawl, id)
  expect((await batches('get', id)).stdout).toMatch(/waiting +2\nrestored +2 of the waiting\n[\s\S]*\nboundary +not crossed\n/)
  expect((await batches('why', id)).stdout).toMatch(
    /its step 'prepare' is dead: NonRetryable: no backup\.\n[\s\S]*2 items were restored\.\n/,
  )
  for (const table of [await batches('items', id), await batches('stuck')])
    expect(table.stdout).toMatch(/^.* restored.*\n.* file-1 .* \d+m?s ago/)
})

test('a batch that does not exist exits with 3 in every verb', async () => {
  const act = ['--by', 'ada', '--reason', 'x']
  const verbs = [['get'], ['items'], ['why'], ['cancel', ...act], ['extend', '--for', '5m', ...act], ['rerun']]
  for (const [verb, ...flags] of verbs) {
    const { code, stderr } = await batches(verb!, '17', ...flags)
    expect({ verb, code }).toEqual({ verb, code: 3 })
    expect(stderr).toMatch(
      /There is no batch '17' of tenant ''\. A batch is removed 30 days after its end\.\nnext +pawl batches list/,
    )
  }
})

test('extend moves the deadline and names the person', async () => {
  define()
  const { id, deadline } = await pawl.batches.start('reparse', files(1))
  const answer = await json<{ deadline: string }>('extend', id, '--for', '15m', '--by', 'ada', '--reason', 'slow disk')
  expect(new Date(answer.deadline).getTime() - deadline!.getTime()).toBe(900_000)
  expect(await db.query('select action, actor, reason from pawl.audit')).toEqual([
    { action: 'batch.extend', actor: 'ada', reason: 'slow disk' },
  ])
  for (const wrong of ['soon', '40d'])
    expect(await batches('extend', id, '--for', wrong, '--by', 'ada', '--reason', 'x')).toMatchObject({
      code: 2,
      stderr: expect.stringMatching(new RegExp(`for must be a duration from 1ms to 30d: .*, got '${wrong}'`)),
    })
})

test('[B1] why names the blocker of a queued batch; cancel frees it', async () => {
  define()
  const { id } = await pawl.batches.start('reparse', files(2))
  const next = await pawl.batches.start('reparse', files(1), { policy: 'queue' })
  expect((await batches('why', next.id)).stdout).toMatch(
    new RegExp(`state +queued\nwhy +Batch ${id} \\('reparse'\\) runs on its track`),
  )
  expect((await batches('get', next.id)).stderr).toContain(`pawl batches why ${next.id}`)
  expect(await batches('cancel', id, '--reason', 'wrong files')).toMatchObject({ code: 2 })
  const cancelled = await batches('cancel', id, '--reason', 'wrong files', '--by', 'ada')
  expect(cancelled).toMatchObject({ code: 0, stdout: `id     ${id}\nstate  cancelled\n` })
  expect(await pawl.batches.get(next.id)).toMatchObject({ state: 'running' })
  await startWorker(pawl)
  await closed(pawl, next.id)
  const late = await batches('cancel', next.id, '--reason', 'too late', '--by', 'ada')
  expect(late).toMatchObject({
    code: 4,
    stderr: expect.stringMatching(
      /is finished and cannot be cancelled\. Nothing is left to do; 'pawl batches rerun \d+' .*\nnext +pawl batches why/,
    ),
  })
})

test('[B9] stuck lists what a time-out left; rerun starts it again', async () => {
  // An item that ended before the watch ran would let the batch finish: it waits for its signal.
  define((_item, { signal }) => new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason))))
  const { id } = await pawl.batches.start('reparse', files(2))
  expect((await batches('stuck')).stderr).toBe('Nothing is stuck.\n')
  await moveClock(db.pool, 3_600_000)
  expect((await batches('stuck', '--older-than', '10m')).stdout).toMatch(/running +file-1 +unfinished/)
  const worker = await startWorker(pawl)
  await closed(pawl, id)
  await worker.stop()
  expect(await batches('get', id, '--watch')).toMatchObject({ code: 7 })
  const { stdout, stderr } = await batches('rerun', id, '--by', 'ada')
  expect(stdout).toMatch(/^id +\d{19}\nstate +running\ndeadline /)
  expect(stderr).toMatch(/^note .*No running worker/)
  expect((await batches('stuck')).stderr).toBe('Nothing is stuck.\n')
  const busy = await batches('rerun', id)
  expect(busy).toMatchObject({
    code: 4,
    stderr: expect.stringMatching(/is busy: batch \d+[\s\S]*next +pawl batches list --state running/),
  })
  expect((await batches('rerun', id, '--policy', 'queue')).stdout).toMatch(/^id +\d{19}\nstate +queued\n/)
})

import { expect, onTestFinished, test } from 'vitest'
import { pagesOf } from '../../test/support/pages.ts'
import { addCursor, append, createLog } from '../../test/support/projections.ts'
import { Connection } from '../db/driver.ts'
import { type Parameter, statement } from '../db/statement.ts'

const moves = 5000

test('moves beside an old snapshot leave every look at a cursor cheap', async () => {
  const db = await createLog()
  const connection = new Connection(db.pawl().config.database, 'test')
  onTestFinished(() => connection.close())
  await addCursor(db, 'totals', { fence: 7 })
  const [xid] = (await append(db, { key: 'a' })).split(':')
  await db.query('select pawl.sequence_events()')
  const of = (file: string) => statement(import.meta.url, file)
  const key = { tenant: '', name: 'totals', generation: 1, shard: 0 }
  const place = { event_id: null, log_generation: null }
  const move = (from: number): Record<string, Parameter> => ({
    ...key,
    ...place,
    fence: 7,
    from_position: from,
    to_position: from + 1,
    idle_ms: '1000',
    fold: '',
  })
  /** Sent at every move and poll. */
  const measure = async (at: number) => {
    const sent: Record<string, Record<string, Parameter>> = {
      move: move(at),
      flush: { ...move(at + 1), done: '{}', attempts: 0, error: null },
      fail: { ...key, fence: 7, from_position: at + 2, attempts: null, error: 'no' },
      stay: { ...key, fence: 7, idle_ms: '1000', fold: '' },
      'await-cursor': key,
      'read-cursor': key,
      'cursor-state': { ...key, fence: 7 },
      cursors: { tenant: '', name: 'totals', generation: null },
      status: { tenant: '', name: null },
      seen: { tenant: '', name: 'totals', xid: xid! },
      survey: { worker: 1, fences: '{}', tenants: '{""}', names: '{totals}', generations: '{1}', kinds: '{totals}' },
    }
    const pages = new Map<string, number>()
    for (const [file, values] of Object.entries(sent)) {
      await connection.query('begin')
      pages.set(file, await pagesOf(connection, of(file), values))
      await connection.query('commit')
    }
    return pages
  }
  await measure(0)
  const before = await measure(2)
  const stranger = await db.pool.connect()
  onTestFinished(() => stranger.release(true))
  await stranger.query('begin isolation level repeatable read')
  await stranger.query('select count(*) from pawl.event')
  for (let n = 4; n < moves; n++) await connection.run(of('move'), move(n))
  // An analyze in between makes each function plan once more, which reads the catalogue.
  await measure(moves)
  const after = await measure(moves + 2)
  const tooMany = [...after].filter(([file, pages]) => pages > 3 * before.get(file)!)
  expect(tooMany.map(([file, pages]) => `${file}: ${before.get(file)} -> ${pages} pages`)).toEqual([])
})

// The cost of a rename at full size.

import { expect, test } from 'vitest'
import { costOf, plantDependents } from '../../test/support/documents.ts'
import { createLog } from '../../test/support/projections.ts'

test('[D3] a rename with 100,000 dependents costs as much as one with none', { timeout: 180_000 }, async () => {
  const db = await createLog('select 1')
  const { documents } = db.pawl()
  documents.define('School', { identity: ['schoolId'], keyChange: 'cascade' })
  documents.define('Session', { identity: ['name', 'school'], references: { school: 'School' } })
  const post = async (schoolId: number) => (await documents.post('School', { schoolId })).uuid
  const [lonely, parent] = [await post(1), await post(2)]
  await plantDependents(db, '', parent, 100_000)
  const client = await db.pool.connect()
  try {
    await client.query('begin')
    const rename = (uuid: string, schoolId: number) =>
      costOf(client, () => documents.put('School', uuid, { schoolId }, { tx: client }))
    // The first ones plan, and read the catalogue for it.
    for (let n = 10; n < 20; n++) await rename(await post(n), n + 10)
    const none = await rename(lonely, 101)
    const many = await rename(parent, 102)
    expect(many.rows).toBe(none.rows)
    expect(Math.abs(many.pages - none.pages)).toBeLessThanOrEqual(5)
  } finally {
    await client.query('rollback')
    client.release()
  }
})

import { expect, test } from 'vitest'
import { configError, pawlOfNowhere } from '../../test/support/nowhere.ts'
import { defineLoads } from '../../test/support/records.ts'

test('[G2] what reads and writes records refuses wrong options', async () => {
  const pawl = pawlOfNowhere()
  const scope = pawl.records.in(defineLoads(pawl), { organisation: '1', registration: '2' })
  const row = { data: { rowId: '1' } }
  const wrong: [() => Promise<unknown>, RegExp][] = [
    [() => scope.put(row, { tx: null as never }), /^put: tx must be your transaction/],
    [() => scope.append([row], { revision: '5' as never }), /^append: revision must be an integer.*, got '5'/],
    [() => scope.list({ limit: 0 }), /^list: limit must be an integer from 1 to 10000, got 0/],
    [() => scope.list({ fliter: {} } as never), /Did you mean 'filter'/],
    [() => scope.get('load', '1', 'now' as never), /^get: at must be one of \{ number \}, .*, got 'now'/],
    [() => scope.history('load', '1', { limit: 'all' as never }), /^history: limit must be an integer/],
    [() => scope.erase('load', '1', {} as never), /^erase: reason must be a string of 1 to 2000 characters, not only spaces/],
    [() => pawl.records.submit('1', { revision: 'x' as never }), /^submit: revision must be an integer/],
    [() => pawl.records.resume('1', { tx: 5 as never }), /^resume: tx must be your transaction/],
    [
      () => pawl.records.submissions('loads', { state: 'done' as never }),
      /^submissions: state must be one of 'uploading', .*, got 'done'/,
    ],
  ]
  for (const [call, message] of wrong) await expect(call()).rejects.toThrow(configError(message))
})

import { expect, test } from 'vitest'
import { configError, pawlOfNowhere } from '../../test/support/nowhere.ts'

const event = { type: 'Added', aggregateType: 'wallet', key: 'a', data: 1 }

test('[G2] the event log refuses wrong options', async () => {
  const { events } = pawlOfNowhere()
  const outside = { ...event, id: '1' }
  const wrong: [() => Promise<unknown>, RegExp][] = [
    [() => events.append(event, { tx: null as never }), /^append: tx must be your transaction.*, got null/],
    [() => events.append(event, { wake: 'no' as never }), /wake must be true or false, got 'no'/],
    [() => events.append(event, { channel: 'x' } as never), /^append has no option 'channel'. Its options are tx, wake\.$/],
    [() => events.ingest(outside, undefined as never), /^ingest: options must be an object with source, got undefined/],
    [() => events.ingest(outside, { source: 5 as never }), /source must be a string of 1 to 200 characters .*, got 5/],
    [
      () => events.ingest(outside, { source: 's', position: 1.5 }),
      /position must be an integer, as a number or a bigint, got 1.5/,
    ],
    [() => events.ingest(outside, { source: 's', remember: 'long' }), /remember must be a duration/],
    [
      () => events.erase({ aggregateType: 'a', key: 'k' } as never),
      /^erase: reason must be a string of 1 to 2000 characters, not only spaces, got undefined/,
    ],
    [() => events.erase({ aggregateType: 'a', key: '', reason: 'r' }), /key must be a string of 1 to 500/],
    [() => events.retain({ keepDays: 0 }), /^retain: keepDays must be an integer from 1 to 36500, got 0/],
    [() => events.whoHoldsBack({ days: 3 } as never), /Did you mean 'keepDays'/],
  ]
  for (const [call, message] of wrong) await expect(call()).rejects.toThrow(configError(message))
})

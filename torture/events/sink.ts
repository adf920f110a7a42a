// A sink's function that writes down each call: when it begins and how it ends. Some calls take a while, and some fail the first time.

import { setTimeout as sleep } from 'node:timers/promises'
import type { LogEvent, SinkOptions } from 'pawl'
import type { History } from '../history.ts'
import type { EventData } from './transactions.ts'

export function recorded(history: History, work: (event: LogEvent<EventData>) => Promise<void>): SinkOptions['handle'] {
  let calls = 0
  return async (given, { attempt, idempotencyKey }) => {
    const event = given as LogEvent<EventData>
    const { position, id, key } = event
    const call = { call: ++calls, position, id, key, attempt, idempotencyKey }
    history.write('call', { ph: 'invoke', ...call })
    try {
      const ms = (position * 7) % 13
      if (ms > 4) await sleep(ms)
      if (attempt === 1 && position % 41 === 7) throw new Error('planned failure')
      await work(event)
    } catch (error) {
      history.write('call', { ph: 'fail', ...call })
      throw error
    }
    history.write('call', { ph: 'ok', ...call })
  }
}

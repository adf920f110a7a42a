// A process that runs projections and sinks, with the faults planned for it. What it defines is its scenario's.

import { setTimeout as sleep } from 'node:timers/promises'
import { createPawl, type Pawl, type ProjectionRunner } from 'pawl'
import { keeperTesting } from 'pawl/testing'
import { Connection } from '../../packages/pawl/src/db/driver.ts'
import type { Statement } from '../../packages/pawl/src/db/statement.ts'
import type { History } from '../history.ts'
import { besideProgram, underTest } from '../under-test.ts'
import { planted } from './planted.ts'

/** Of the processes one gives so few positions in a tick that a window of new events takes it many. */
const smallTicks = { slot: 'w3', events: 25 }

export async function runProjections(define: (pawl: Pawl, history: History) => void, programUrl: string): Promise<void> {
  const { options, proc, history, logger } = underTest(planted)
  const { url, leaseMs, beatMs, slot } = options
  keeperTesting.probeModule = besideProgram(programUrl, 'keeper-probe')
  if (slot === smallTicks.slot) limitTicks(smallTicks.events)
  const pawl = createPawl({ databaseUrl: url, applicationName: proc, logger, connectTimeoutMs: 5000, queryTimeoutMs: 5000 })
  define(pawl, history)
  pawl.on('cursor.acquired', ({ name, generation, shard, fence, crashes }) =>
    history.write('acquired', { name, generation, shard, fence, crashes }),
  )
  pawl.on('cursor.lost', ({ name, generation, shard, fence }) => history.write('lost', { name, generation, shard, fence }))
  pawl.on('cursor.refused', ({ name, generation, shard, fence }) => history.write('refused', { name, generation, shard, fence }))
  pawl.on('cursor.latched', ({ name, generation, shard, reason }) =>
    history.write('latched', { name, generation, shard, reason }),
  )
  pawl.on('projection.parked', ({ name, key, position, reason }) => history.write('parked', { name, key, position, reason }))
  pawl.on('projection.unparked', ({ name, key }) => history.write('unparked', { name, key }))

  const runner = await start(() => pawl.projections.runner({ name: proc, lease: leaseMs, beatMs, lookMs: 150, pollMs: 300 }))
  history.write('started', { pid: process.pid })
  process.on('SIGTERM', () => {
    void runner.stop().then(async () => {
      history.write('stopped')
      await pawl.close()
      process.exit(0)
    })
  })

  /** The server may be down at this very moment; a process manager would start us again. */
  async function start(create: () => ProjectionRunner): Promise<ProjectionRunner> {
    for (;;) {
      const created = create()
      try {
        await created.start()
        return created
      } catch (error) {
        logger.error({ error: String(error) }, 'could not start')
        await sleep(100)
      }
    }
  }
}

function limitTicks(events: number): void {
  const run = Connection.prototype.run
  Connection.prototype.run = function (this: Connection, statement: Statement, values) {
    return run.call(this, statement, statement.file === 'sequence' ? { ...values, limit: events } : values) as never
  }
}

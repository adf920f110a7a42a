// Kinds for the tests of `pawl worker` and `pawl dev`.
import { setTimeout as sleep } from 'node:timers/promises'

export default (pawl) => {
  pawl.jobs.define('quick', { run: () => 'done' })
  pawl.jobs.define('broken', { retry: { attempts: 1 }, run: () => Promise.reject(new Error('it broke')) })
  // Ends when it is told to by a row, whatever its signal says.
  pawl.jobs.define('patient', {
    run: async (job, { touch }) => {
      await touch('started')
      while (!job.payload.isOver) await sleep(20)
    },
  })
}

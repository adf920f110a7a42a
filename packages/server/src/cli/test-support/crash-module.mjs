// Kinds that end their process, beside ones that do not.
import { setTimeout as sleep } from 'node:timers/promises'

export default (pawl) => {
  pawl.jobs.define('quick', { run: () => sleep(20) })
  pawl.jobs.define('fresh', { run: () => Date.now() })
  pawl.jobs.define('killer', {
    run: async (job) => {
      await sleep(job.crashes < 2 ? 100 : 1500)
      process.kill(process.pid, 'SIGKILL')
      await sleep(60_000)
    },
  })
  pawl.jobs.define('throws', {
    run: async () => {
      setTimeout(() => {
        throw new Error('nobody catches this')
      }, 100)
      await sleep(60_000)
    },
  })
  pawl.jobs.define('long', { run: () => sleep(60_000) })
  // Until its process dies, then three seconds.
  pawl.jobs.define('three', { run: (job) => sleep(job.crashes === 0 ? 60_000 : 3000) })
}

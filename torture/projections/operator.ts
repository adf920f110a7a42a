// A process that operates: mends what is parked, pauses and resumes, rebuilds the projection as a new generation, switches to it and retires
// the old one, or, in a story, rolls back to it. It may die at any moment; whoever comes after it looks where things stand and goes on.

import { setTimeout as sleep } from 'node:timers/promises'
import { createPawl } from 'pawl'
import { mendAll } from '../events/mend.ts'
import { planted } from '../events/planted.ts'
import { hardyPool } from '../pool.ts'
import { underTest } from '../under-test.ts'
import { folded, foldedName, generationsMax, shardedName } from './handlers.ts'
import { resumeAll } from './mend.ts'

const act = { reason: 'torture', actor: 'torture' }

const { options, proc, history, logger } = underTest(planted)
const { url } = options
const pawl = createPawl({ databaseUrl: url, applicationName: proc, logger, connectTimeoutMs: 5000, queryTimeoutMs: 10_000 })
const pool = hardyPool({ url, name: `${proc} own`, max: 2 })

/** A rebuild makes the highest generation that is defined here, so they are defined one by one. */
const defined = new Set<number>()
function define(generation: number): void {
  if (!defined.has(generation)) pawl.projections.define(foldedName, folded(undefined, generation))
  defined.add(generation)
}

const stop = new AbortController()
process.on('SIGTERM', () => stop.abort())
history.write('started', { pid: process.pid })

/** One after the other; what fails is tried again at the next turn. */
async function every(everyMs: number, work: () => Promise<unknown>): Promise<void> {
  while (!stop.signal.aborted) {
    await work().catch((error: unknown) => logger.warn({ error: String(error) }, 'an act failed'))
    await sleep(everyMs, undefined, { signal: stop.signal }).catch(() => undefined)
  }
}

async function pauseForAWhile(): Promise<void> {
  // What the last turn could not.
  await resumeAll(pool)
  await pawl.projections.pause(shardedName, act)
  history.write('paused', { name: shardedName })
  await sleep(150)
  await resumeAll(pool)
}

/** Next generation, or what is left of the last turn. */
async function rebuild(): Promise<void> {
  const generations = await pawl.projections.status(foldedName)
  const live = generations.find(({ isLive }) => isLive)?.generation
  if (live === undefined) return
  const other = generations.find(({ isLive }) => !isLive)?.generation
  if (other === undefined) {
    if (live === generationsMax) return
    define(live + 1)
    await pawl.projections.rebuild(foldedName, act)
    return
  }
  define(other)
  if (other > live) {
    const { isEqual } = await pawl.projections.switchTo(foldedName, { ...act, generation: other, timeout: 4000 })
    history.write('switched', { from: live, to: other, isEqual })
    if (!isEqual) return
  }
  await pawl.projections.retire(foldedName, { ...act, generation: Math.min(live, other) })
  history.write('retired', { generation: Math.min(live, other) })
}

/** Switches to a second generation, pauses it, and rolls back when the first has gone on as far as it will. */
async function rollBack(): Promise<void> {
  const positionOf = async (generation: number) =>
    (await pawl.projections.status(foldedName)).find((each) => each.generation === generation)?.position
  define(2)
  if ((await positionOf(2)) === undefined) await pawl.projections.rebuild(foldedName, act)
  await pawl.projections.switchTo(foldedName, { ...act, generation: 2, timeout: 10_000 })
  await pawl.projections.pause(foldedName, { ...act, generation: 2 })
  const paused = await positionOf(2)
  history.write('paused', { name: foldedName, generation: 2, position: paused })
  for (let time = 0; time < 30 && (await positionOf(1))! <= paused!; time++) await sleep(100)
  await pawl.projections.rollBack(foldedName, { ...act, generation: 1 })
  await resumeAll(pool)
  history.write('rolled back', { position: await positionOf(1) })
  stop.abort()
}

/** `how`: only this, in a story or in a matrix that parks by itself. */
switch (options.how) {
  case 'roll back':
    await every(100, rollBack)
    break
  case 'rebuild':
    await every(50, rebuild)
    break
  default:
    await Promise.all([every(700, rebuild), every(400, () => mendAll(pool)), every(1500, pauseForAWhile)])
}
history.write('stopped')
await pawl.close()
await pool.end()
process.exit(0)

// Plays one case of the matrix of projections: a process that meets the fault at its probe, one that does not, and a few transactions.

import type { ProbeName } from 'pawl/testing'
import { mendAll } from '../events/mend.ts'
import { playCase } from '../events/crash-stage.ts'
import { keys, transaction } from '../events/transactions.ts'
import { calmPlan } from '../plan.ts'
import type { Rig } from '../rig.ts'
import type { Case, CaseEnd, MatrixStage } from '../scenario.ts'
import { aims } from './aims.ts'
import { isAtRest } from './rest.ts'
import { ProjectionTraffic } from './traffic.ts'

const heldByOne: readonly ProbeName[] = ['projections.acquired', 'projections.event.handled']

export async function openStage(rig: Rig, seed: number): Promise<MatrixStage> {
  const traffic = await ProjectionTraffic.open(rig, calmPlan({ name: 'projections', aims }, seed))
  await rig.startProcess('w2')
  return { play: (each, index) => play(rig, traffic, each, index), close: () => traffic.close() }
}

function play(rig: Rig, traffic: ProjectionTraffic, each: Case, index: number): Promise<CaseEnd> {
  const { provocation, probe } = each
  return playCase(rig, traffic, each, {
    index,
    isAtRest: () => isAtRest(rig),
    provoke: async (round, slot) => {
      // What it does not hold it never comes to: whoever holds it lets go.
      if (heldByOne.includes(probe) && round % 2 === 1) rig.signal('w2', 'SIGKILL')
      const isBad = provocation === 'bad event'
      for (const key of keys) await traffic.writer.write(transaction(`${index}/${round}/${key}`, key, 2, { isBad }))
      await traffic.observe()
      if (isBad) await mendAll(rig.admin)
      if (provocation === 'stop') rig.signal(slot, 'SIGTERM')
    },
  })
}

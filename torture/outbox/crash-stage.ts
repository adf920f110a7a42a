// Plays one case of the matrix of outbox: a process that meets the fault at its probe, one that does not, and a few transactions.

import { playCase } from '../events/crash-stage.ts'
import { EventTraffic } from '../events/traffic.ts'
import { keys, transaction } from '../events/transactions.ts'
import { calmPlan } from '../plan.ts'
import type { Rig } from '../rig.ts'
import type { MatrixStage } from '../scenario.ts'
import { aims } from './aims.ts'
import { isAtRest } from './rest.ts'

export async function openStage(rig: Rig, seed: number): Promise<MatrixStage> {
  const traffic = await EventTraffic.open(rig, calmPlan({ name: 'outbox', aims }, seed))
  await rig.startProcess('w2')
  return {
    play: (each, index) =>
      playCase(rig, traffic, each, {
        index,
        isAtRest: () => isAtRest(rig),
        provoke: async (round) => {
          for (const key of keys) await traffic.writer.write(transaction(`${index}/${round}/${key}`, key, 2))
        },
      }),
    close: () => traffic.close(),
  }
}

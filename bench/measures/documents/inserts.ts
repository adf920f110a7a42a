import { sized } from '../../harness/context.ts'
import { measure } from '../../harness/report/measure.ts'
import { shown } from '../../harness/report/report.ts'
import { interleave } from '../../harness/rounds.ts'
import { withChild } from '../../harness/system/with-child.ts'
import type { Inserts } from '../../peers/documents/loads.ts'
import type { Group } from '../group.ts'
import { cascade, pawl } from './systems.ts'

const control = 'another is renamed'
const contenders = [
  { name: pawl.name, system: pawl, isControl: false },
  { name: control, system: pawl, isControl: true },
  { name: cascade.name, system: cascade, isControl: false },
] as const

/** Four connections insert children of a parent whose rename is open half of the time. */
export const inserts: Group = {
  name: 'inserts',
  measures: ['insert during renames'],
  async run(context) {
    const durationMs = sized(context, 4_000, 1_000)
    const results = await interleave(
      context,
      'inserts',
      contenders.map(({ name, system, isControl }) => ({
        name,
        run: () =>
          context.server.withDatabase((database) =>
            withChild(context, database, system, async (child) => ({
              ...(await child.call<Inserts>('run', 'inserts', isControl, durationMs)),
            })),
          ),
      })),
    )
    const told = (contender: string) =>
      `${contender}: p50 ${shown(results.value(contender, 'p50'))} ms, ${shown(results.value(contender, 'inserted'))} inserted and ${shown(results.value(contender, 'refused'))} refused during ${shown(results.value(contender, 'renames'))} renames`
    return [
      measure({
        name: 'insert during renames',
        unit: 'ms, p99',
        better: 'lower',
        results,
        metric: 'p99',
        peers: [cascade.name],
        limits: [control],
        bars: [{ atMost: 1.5, times: control }],
        notes: contenders.map(({ name }) => told(name)),
      }),
    ]
  },
}

import { measure } from '../../harness/report/measure.ts'
import { shown } from '../../harness/report/report.ts'
import type { Group } from '../group.ts'
import { pick } from './samples.ts'
import { takeLarge } from './size.ts'
import { takeSubmissions } from './submissions.ts'

const megabytesMax = 200

/** RSS above idle of a process that uploads and applies a first submission: 15,000 rows and ten times as many, whichever is more. */
export const memory: Group = {
  name: 'memory',
  measures: ['memory'],
  async run(context) {
    const [small, large] = [await takeSubmissions(context), await takeLarge(context)]
    const [few, many] = [small.value('pawl', 'first memoryMb'), large.value('pawl', 'memoryMb')]
    const isSmallMore = (few ?? 0) > (many ?? 0)
    return [
      measure({
        name: 'memory',
        unit: 'MB',
        better: 'lower',
        results: pick({ pawl: isSmallMore ? [small, 'pawl', 'first memoryMb'] : [large, 'pawl', 'memoryMb'] }),
        bars: [
          {
            says: `<= ${megabytesMax} above idle, any size`,
            isMet: few !== null && many !== null && Math.max(few, many) <= megabytesMax,
          },
        ],
        notes: [
          `${shown(few)} MB at 15,000 rows, ${shown(many)} MB at 150,000; RSS ${shown(large.value('pawl', 'idleMb'))} MB when idle`,
        ],
      }),
    ]
  },
}

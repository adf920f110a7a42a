import type { Context } from '../harness/context.ts'
import type { Measure } from '../harness/report/measure.ts'

/** Measures that are taken together. */
export interface Group {
  readonly name: string
  /** The exact names of its measures, for --only. */
  readonly measures: readonly string[]
  run(context: Context): Promise<Measure[]>
}

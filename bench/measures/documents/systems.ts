import type { Context } from '../../harness/context.ts'
import type { Database } from '../../harness/machine/server.ts'
import type { Child, System } from '../../harness/system/child.ts'
import { withChild } from '../../harness/system/with-child.ts'

export const pawl: System = { name: 'pawl', module: 'documents/pawl' }
export const cascade: System = { name: 'native cascade', module: 'documents/relational' }
export const rewrite: System = { name: 'JSONB rewrite', module: 'documents/jsonb' }
export const plain: System = { name: 'plain table', module: 'documents/plain' }
export const copy: System = { name: 'COPY', module: 'documents/plain' }

export interface Running {
  readonly name: string
  readonly child: Child
  readonly database: Database
}

/** A process of each system, each with a database of its own, for all rounds: what they read or rename takes longer to write. */
export function withAll<Value>(
  context: Context,
  [system, ...others]: readonly System[],
  use: (running: readonly Running[]) => Promise<Value>,
): Promise<Value> {
  if (system === undefined) return use([])
  return context.server.withDatabase((database) =>
    withChild(context, database, system, (child) =>
      withAll(context, others, (running) => use([{ name: system.name, child, database }, ...running])),
    ),
  )
}

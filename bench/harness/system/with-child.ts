import { type Context, setupOf } from '../context.ts'
import type { Database } from '../machine/server.ts'
import { Child, type System } from './child.ts'

/** A new process of a system, prepared in this database. */
export async function withChild<Value>(
  context: Context,
  database: Database,
  system: System,
  use: (child: Child) => Promise<Value>,
): Promise<Value> {
  const child = new Child(system)
  try {
    await child.prepare(setupOf(context, database))
    return await use(child)
  } finally {
    await child.stop()
  }
}

// A worker in a process of its own, for tests that kill, stop or skew it. Its argument is a WorkerSpec as JSON. It says one JSON object a
// line on stdout, and hears words on stdin: `go` lets handlers that hold go on, `stop` drains and ends.

import { createInterface } from 'node:readline'
import { createPawl } from 'pawl'
import { installProbe } from 'pawl/testing'
import pg from 'pg'
import { defineKinds, type HandlerWorld } from './kinds.ts'
import type { Said, WorkerSpec } from './protocol.ts'

const spec = JSON.parse(process.argv[2]!) as WorkerSpec
// Writes to a pipe are synchronous here, so what was said before a kill is heard.
const say = (said: Said) => process.stdout.write(`${JSON.stringify(said)}\n`)

let go: () => void = () => undefined
const world: HandlerWorld = {
  say,
  go: new Promise<void>((resolve) => {
    go = resolve
  }),
  effects: new pg.Pool({ connectionString: spec.effectsUrl ?? spec.pawl.databaseUrl, max: 20 }),
}

if (spec.killAt !== undefined) {
  const { probe, hit } = spec.killAt
  let hits = 0
  installProbe((name) => {
    if (name !== probe || ++hits !== hit) return
    say({ event: 'killing', probe })
    process.kill(process.pid, 'SIGKILL')
    // The signal arrives at once; nothing of ours may run until it does.
    for (;;);
  })
}

const pawl = createPawl(spec.pawl)
const { enqueue } = defineKinds(pawl, spec.kinds, world)
for (const name of ['job.refused', 'job.lost', 'worker.lost', 'worker.rescued', 'worker.blocked', 'worker.unwritable'] as const) {
  pawl.on(name, (detail) => say({ event: name, detail: JSON.parse(JSON.stringify(detail)) as Record<string, unknown> }))
}
const worker = pawl.worker(spec.worker)

createInterface({ input: process.stdin }).on('line', (word) => {
  if (word === 'go') go()
  else if (word === 'enqueue') void enqueue().then((id) => say({ event: 'enqueued', id }))
  else if (word === 'stop') void stop()
})
// Nobody is there any more to tell us to stop.
process.stdin.on('end', () => process.exit(1))

await worker.start()
say({ event: 'ready', worker: worker.id!, wallMs: Date.now() })

async function stop(): Promise<void> {
  await worker.stop()
  say({ event: 'stopped', metrics: worker.metrics() as unknown as Record<string, number> })
  await pawl.close()
  await world.effects.end()
  process.exit(0)
}

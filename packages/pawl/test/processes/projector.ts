// A runner of projections in a process of its own, for tests that kill or stop it. Its argument is a ProjectorSpec as JSON. It says one JSON
// object a line on stdout, and hears words on stdin: `go` lets what holds go on, `stop` ends in order.

import { createInterface } from 'node:readline'
import { createPawl } from 'pawl'
import { installProbe } from 'pawl/testing'
import pg from 'pg'
import { defineScene, type ProjectorSaid, type ProjectorSpec } from './projections.ts'

const spec = JSON.parse(process.argv[2]!) as ProjectorSpec
// Writes to a pipe are synchronous here, so what was said before a kill is heard.
const say = (said: ProjectorSaid) => process.stdout.write(`${JSON.stringify(said)}\n`)

let go: () => void = () => undefined
const going = new Promise<void>((resolve) => {
  go = resolve
})

let hits = 0
const { at } = spec
if (at !== undefined) {
  installProbe(async (name) => {
    if (name !== at.probe || ++hits !== at.hit) return
    say({ event: at.what === 'kill' ? 'killing' : 'holding', probe: name })
    if (at.what === 'hold') return going
    if (at.what === 'stop') return void process.kill(process.pid, 'SIGSTOP')
    process.kill(process.pid, 'SIGKILL')
    // The signal arrives at once; nothing of ours may run until it does.
    for (;;);
  })
}

const pawl = createPawl(spec.pawl)
const effects = new pg.Pool({ connectionString: spec.pawl.databaseUrl, max: 10 })
defineScene(pawl, spec.scene, { say, going, effects })
for (const name of ['cursor.acquired', 'cursor.lost', 'cursor.refused', 'projection.parked'] as const) {
  pawl.on(name, (detail) => say({ event: name, detail: JSON.parse(JSON.stringify(detail)) as Record<string, unknown> }))
}
const runner = pawl.worker(spec.runner)

createInterface({ input: process.stdin }).on('line', (word) => {
  if (word === 'go') go()
  else if (word === 'stop') void stop()
})
// Nobody is there any more to tell us to stop.
process.stdin.on('end', () => process.exit(1))

await runner.start()
say({ event: 'ready', worker: runner.id! })

async function stop(): Promise<void> {
  await runner.stop()
  await pawl.close()
  await effects.end()
  say({ event: 'stopped' })
  process.exit(0)
}

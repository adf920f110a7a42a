// What every process under test begins with: what it is told, where it writes down what it does, its planted bug, its supervisor.

import { appendFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Logger } from 'pawl'
import { type Canary, plantInProcess } from './canary.ts'
import { type ChildOptions, childOptions, procOf } from './child.ts'
import { ControlClient } from './control.ts'
import { History } from './history.ts'
import { installFaults } from './probe-faults.ts'

export interface UnderTest {
  readonly options: ChildOptions
  /** The slot and which start of it. */
  readonly proc: string
  readonly history: History
  readonly control: ControlClient
  readonly logger: Logger
}

export function underTest(canaries: readonly Canary[]): UnderTest {
  const options = childOptions()
  const { dir, slot } = options
  const proc = procOf(options)
  const log =
    (level: string) =>
    (fields: Parameters<Logger['warn']>[0], message: string): void =>
      appendFileSync(join(dir, `${slot}.log`), `${JSON.stringify({ wall: Date.now(), proc, level, message, ...fields })}\n`)
  const logger: Logger = { debug() {}, info() {}, warn: log('warn'), error: log('error') }
  plantInProcess(canaryOf(canaries, options), slot)
  // Without its supervisor nobody would ever end it.
  const control = new ControlClient(options.controlPort, () => process.kill(process.pid, 'SIGKILL'))
  const history = new History(dir, proc)
  process.on('unhandledRejection', (error) => {
    logger.error({ error: error instanceof Error ? (error.stack ?? error.message) : String(error) }, 'unhandled rejection')
    process.exit(1)
  })
  installFaults({ slot, faults: options.faults, history, control })
  return { options, proc, history, control, logger }
}

/** In the keeper's thread of a process under test: its own faults, and its share of a planted bug. */
export function keeperUnderTest(canaries: readonly Canary[]): void {
  const options = childOptions()
  plantInProcess(canaryOf(canaries, options), options.slot)
  installFaults({
    slot: `${options.slot} keeper`,
    faults: options.keeperFaults,
    history: new History(options.dir, procOf(options), ' keeper'),
    control: new ControlClient(options.controlPort),
  })
}

/** The keeper's probes beside the program that runs, compiled or not. */
export function besideProgram(programUrl: string, name: string): string {
  return new URL(programUrl.endsWith('.ts') ? `./${name}.ts` : `./${name}.js`, programUrl).href
}

function canaryOf(canaries: readonly Canary[], { canary }: ChildOptions): Canary | undefined {
  return canary === undefined ? undefined : canaries.find(({ name }) => name === canary)
}

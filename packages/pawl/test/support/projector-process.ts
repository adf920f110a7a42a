// A runner of projections in a process of its own, in the hands of a test. It never outlives its test.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import type { Pawl, ProjectionRunner } from 'pawl'
import pg from 'pg'
import { inject, onTestFinished } from 'vitest'
import { defineScene, type ProjectorSaid, type ProjectorSpec, type Scene } from '../processes/projections.ts'
import { deferred, type TestDatabase, until } from './database.ts'
import { quickRunner, startRunner } from './projections.ts'

const root = fileURLToPath(new URL('../../../../', import.meta.url))

type SaidAs<Event extends ProjectorSaid['event']> = ProjectorSaid extends infer One
  ? One extends { event: infer Names }
    ? Event extends Names
      ? One
      : never
    : never
  : never

export class ProjectorProcess {
  readonly said: ProjectorSaid[] = []
  readonly #child: ChildProcess
  readonly #ended: Promise<unknown>
  #hasEnded = false
  #stderr = ''

  constructor(url: string, { runner = quickRunner, pawl, ...rest }: Partial<ProjectorSpec> & Pick<ProjectorSpec, 'scene'>) {
    const spec: ProjectorSpec = { pawl: { databaseUrl: url, ...pawl }, runner, ...rest }
    this.#child = spawn(process.execPath, [inject('programs').projector, JSON.stringify(spec)], {
      cwd: root,
      stdio: 'pipe',
    })
    this.#ended = once(this.#child, 'close').then(() => {
      this.#hasEnded = true
    })
    this.#child.stdin!.on('error', () => undefined)
    this.#child.stderr!.setEncoding('utf8').on('data', (text: string) => {
      this.#stderr = (this.#stderr + text).slice(-20_000)
    })
    createInterface({ input: this.#child.stdout! }).on('line', (line) => this.said.push(JSON.parse(line) as ProjectorSaid))
    onTestFinished(() => this.kill())
  }

  /** A process that holds its cursor. */
  static async holding(url: string, spec: Partial<ProjectorSpec> & Pick<ProjectorSpec, 'scene'>): Promise<ProjectorProcess> {
    const projector = new ProjectorProcess(url, spec)
    await projector.hears('cursor.acquired')
    return projector
  }

  get pid(): number {
    return this.#child.pid!
  }

  heard<Event extends ProjectorSaid['event']>(event: Event): SaidAs<Event>[] {
    return this.said.filter((said) => said.event === event) as unknown as SaidAs<Event>[]
  }

  async hears<Event extends ProjectorSaid['event']>(event: Event, times = 1): Promise<SaidAs<Event>[]> {
    try {
      await until(
        `a projector says '${event}' ${times} time(s)`,
        () => this.heard(event).length >= times || this.#hasEnded,
        40_000,
      )
      if (this.heard(event).length < times) throw new Error(`It ended before it said '${event}' ${times} time(s).`)
      return this.heard(event)
    } catch (cause) {
      throw new Error(`${String(cause)} It said ${JSON.stringify(this.said.slice(-20))}, and on stderr: ${this.#stderr}`, {
        cause,
      })
    }
  }

  tell(word: 'go' | 'stop'): void {
    this.#child.stdin!.write(`${word}\n`)
  }

  /** SIGKILL, which also ends a stopped process; returns when it is gone and everything it said was heard. */
  async kill(): Promise<void> {
    if (!this.#hasEnded) this.#child.kill('SIGKILL')
    await this.#ended
  }

  async ended(): Promise<NodeJS.Signals | null> {
    await this.#ended
    return this.#child.signalCode
  }

  pause(): void {
    this.#child.kill('SIGSTOP')
  }

  resume(): void {
    this.#child.kill('SIGCONT')
  }
}

/** The same scene in the test's own process, standing by. */
export async function standBy(
  db: TestDatabase,
  scene: Scene,
  generation = 1,
): Promise<{ pawl: Pawl; runner: ProjectionRunner; said: readonly ProjectorSaid[] }> {
  const pawl = db.pawl()
  const said: ProjectorSaid[] = []
  const effects = new pg.Pool({ connectionString: db.url, max: 5 })
  effects.on('error', () => undefined)
  onTestFinished(() => effects.end())
  const { promise, resolve } = deferred()
  resolve()
  defineScene(pawl, scene, { say: (line) => said.push(line), going: promise, effects }, generation)
  return { pawl, runner: await startRunner(pawl, quickRunner), said }
}

/** Ends every session of a process on the server, as a network or an administrator would. */
export async function terminateSessions(db: TestDatabase, applicationName: string): Promise<number> {
  const rows = await db.query(
    `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name like $1`,
    [`${applicationName} %`],
  )
  return rows.length
}

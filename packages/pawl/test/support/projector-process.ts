// A runner of projections in a process of its own.

import type { Pawl, Worker } from 'pawl'
import pg from 'pg'
import { inject, onTestFinished } from 'vitest'
import { defineScene, type ProjectorSaid, type ProjectorSpec, type Scene } from '../processes/projections.ts'
import { deferred, type TestDatabase } from './database.ts'
import { quickRunner, startRunner } from './projections.ts'
import { TalkingProcess } from './talking-process.ts'

type SpecOptions = Partial<ProjectorSpec> & Pick<ProjectorSpec, 'scene'>

export class ProjectorProcess extends TalkingProcess<ProjectorSaid, 'go' | 'stop'> {
  constructor(url: string, { runner = quickRunner, pawl, ...rest }: SpecOptions) {
    const spec: ProjectorSpec = { pawl: { databaseUrl: url, ...pawl }, runner, ...rest }
    super(inject('programs').projector, spec)
  }

  /** A process that holds its cursor. */
  static async holding(url: string, spec: SpecOptions): Promise<ProjectorProcess> {
    const projector = new ProjectorProcess(url, spec)
    await projector.hears('cursor.acquired')
    return projector
  }
}

/** The same scene in the test's own process, standing by. */
export async function standBy(
  db: TestDatabase,
  scene: Scene,
  generation = 1,
): Promise<{ pawl: Pawl; runner: Worker; said: readonly ProjectorSaid[] }> {
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

import { readFile, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { EmbeddedError } from '../errors.ts'
import { isAlive, isPostmasterOf, isZombie } from '../processes.ts'
import { untilAnswer } from './answer.ts'
import { type PidFile, pidFilePath, readPidFile } from './pidfile.ts'

export interface Running {
  readonly pid: number
  readonly port: number
}

export interface AdoptRequest {
  readonly dataDir: string
  readonly password: string
  readonly onNotice: (line: string) => void
}

const silenceMs = 60_000
/** Where the system cannot tell who a process is, silence decides, so it is kept short. */
const unknownSilenceMs = 10_000

/**
 * The postmaster that already serves this data directory: left by a parent that was killed, or started by another process. Undefined
 * when there is none, and then a new one can be started. Called under the lock of the directory.
 */
export async function adopt(request: AdoptRequest): Promise<Running | undefined> {
  const { dataDir, password } = request
  for (;;) {
    const file = await readPidFile(dataDir)
    // PostgreSQL itself recovers from the file of a dead postmaster, and while doing so makes sure that no backend of it is left. But it
    // takes a zombie for alive and would refuse to start.
    if (file === undefined) return undefined
    if (await isZombie(file.pid)) return removeStale(request, file)
    if (!(await isAlive(file.pid))) return undefined
    const identity = await isPostmasterOf(file.pid, dataDir)
    if (identity === 'no') return removeStale(request, file)
    const isGone = async (): Promise<boolean> => (await readPidFile(dataDir))?.pid !== file.pid || !(await isAlive(file.pid))
    const answer = await untilAnswer(
      { pid: file.pid, port: file.port, password, dataDir },
      identity === 'yes' ? silenceMs : unknownSilenceMs,
      isGone,
    )
    if (answer.state === 'ours') return { pid: file.pid, port: file.port }
    // It was just stopping. Read again: next comes nothing, or another postmaster.
    if (answer.state === 'gone') continue
    if (identity === 'unknown') return removeStale(request, file)
    throw new EmbeddedError(
      'not_answering',
      `The PostgreSQL of ${dataDir} is running (pid ${file.pid}, port ${file.port}) but does not answer: ${answer.why}. ` +
        `It may be stopped or hanging. See postgres.log; if nothing else helps, kill process ${file.pid} and start again: no data is lost.`,
    )
  }
}

/**
 * Removes the file of a postmaster whose pid now belongs to another program: PostgreSQL would refuse to start as long as that runs.
 * If backends of the dead postmaster were still there, PostgreSQL would find their shared memory by the data directory's inode.
 */
async function removeStale({ dataDir, onNotice }: AdoptRequest, seen: PidFile): Promise<undefined> {
  const now = await readPidFile(dataDir)
  if (now?.text !== seen.text) return undefined
  await rm(pidFilePath(dataDir), { force: true })
  onNotice(
    `The PostgreSQL of ${dataDir} crashed and its pid ${seen.pid} now belongs to another process; removed its stale postmaster.pid.`,
  )
  return undefined
}

/** Which of our settings an adopted server was not started with, by the command line that it has recorded itself. */
export async function differingSettings(dataDir: string, settings: Readonly<Record<string, string>>): Promise<string[]> {
  const commandLine = await readFile(join(dataDir, 'postmaster.opts'), 'utf8').catch(() => '')
  return Object.entries(settings)
    .filter(([name, value]) => !commandLine.includes(`"${name}=${value}"`))
    .map(([name]) => name)
}

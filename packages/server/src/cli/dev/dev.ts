// `pawl dev`: a database, the schema, two worker processes and something for them to do, in one command; Ctrl-C ends all of it.

import { createPawl, silentLogger } from 'pawl'
import { durationMs, migrate, release } from 'pawl/admin'
import pg from 'pg'
import { type Context, command, integer, text, toggle, withDefault } from '../command.ts'
import { exitCodes } from '../failure.ts'
import { waitText } from '../migrate.ts'
import { clockTime, type Terminal } from '../terminal.ts'
import { type JobLine, jobLineHeader, jobLineText } from '../worker/job-lines.ts'
import { exitOf, type StopRequests, stopRequests } from '../worker/stop-signals.ts'
import { moduleArgument, refuseTenant, stopText } from '../worker/worker.ts'
import { WorkerPool } from '../worker/worker-pool.ts'
import { demoQueue, demoSchemaSql, trickle } from './demo.ts'
import { type DevDatabase, openDevDatabase } from './dev-database.ts'

const flags = {
  dir: text('--dir <folder>', 'where the embedded database lives (or PAWL_DEV_DIR; default .pawl/dev)'),
  port: integer('--port <port>', [0, 65_535], 'port of the embedded database, or the next free one; 0 for any (default 15432)'),
  workers: withDefault(integer('--workers <count>', [0, 64], 'number of worker processes'), 2),
  demo: toggle('--no-demo', 'run no demo jobs'),
  grace: withDefault(text('--grace <duration>', 'how long running jobs may take to finish on stop'), '10s'),
  remote: toggle('--remote', 'allow a database on another host'),
  showPassword: toggle('--show-password', 'print the database URL with its password'),
}
type DevContext = Context<typeof flags>

export const dev = command({
  name: 'dev',
  summary: 'Start PostgreSQL, migrate it and run workers: your modules, or demo jobs. Ctrl-C stops everything.',
  examples: ['pawl dev', 'pawl dev ./worker.ts', 'pawl dev --no-demo --workers 0'],
  args: [moduleArgument('[module...]')],
  flags,
  run: start,
})

async function start(context: DevContext, modules: string[]): Promise<number> {
  const { terminal, flags } = context
  refuseTenant(context)
  const graceMs = durationMs(flags.grace)
  // From here on a signal is an answerable request, also while things are still starting.
  const requests = stopRequests()
  const story = new Story(terminal)
  story.begin(`pawl ${release}: starting ...`)
  answerWhileStarting(requests, story)
  const database = await openDevDatabase({
    database: context.database,
    dir: flags.dir,
    port: flags.port,
    isRemote: context.flags.remote,
    isPasswordShown: context.flags.showPassword,
    onNotice: (line) => story.note(line),
  })
  try {
    return await runOn(database, { context, modules, graceMs, requests, story })
  } finally {
    story.tell(await database.stop())
    requests.forget()
  }
}

/** A start of PostgreSQL is not interrupted: half of one would have to be recovered. A second signal leaves that to the next start. */
function answerWhileStarting(requests: StopRequests, story: Story): void {
  void requests.asked.then(() => {
    if (!story.isReady) story.begin('stopping as soon as everything has started; Ctrl-C again exits at once')
  })
  void requests.insisted.then(() => {
    if (!story.isReady) process.exit(exitCodes.interrupted)
  })
}

interface Run {
  readonly context: DevContext
  readonly modules: readonly string[]
  readonly graceMs: number
  readonly requests: StopRequests
  readonly story: Story
}

async function runOn(database: DevDatabase, { context, modules, graceMs, requests, story }: Run): Promise<number> {
  const { flags } = context
  const isDemo = modules.length === 0 && flags.demo
  const count = modules.length === 0 && !isDemo ? 0 : flags.workers
  const pawl = createPawl({
    ...database.options,
    applicationName: 'pawl dev caller',
    logger: silentLogger,
    tuning: { callerConnectionsMax: 2 },
  })
  const workers = new WorkerPool(
    { database: database.options, modules, graceMs },
    { onJob: (line, number) => story.job(line, number), onNotice: (text) => story.tell(text) },
  )
  try {
    const asked = new AbortController()
    void requests.asked.then(() => asked.abort())
    const applied = await unlessAsked(asked.signal, async () => {
      const report = await migrate(pawl.config.direct, { signal: asked.signal, onWait: () => story.begin(waitText) })
      if (isDemo) await prepareDemo(database.url)
      await workers.start(count, asked.signal)
      return report.applied
    })
    if (applied === undefined) return exitOf(await requests.asked)
    story.ready(database, { applied, pids: workers.pids, isDemo, modules, runs: workers.runs })
    const end = new AbortController()
    const trickling = isDemo && count > 0 ? trickle(pawl, end.signal, story.trouble) : Promise.resolve()
    const reason = await requests.asked
    await stopAll({ workers, trickling, end, requests, story, count })
    return exitOf(reason)
  } finally {
    await workers.stop()
    await pawl.close()
  }
}

/** Undefined when it was asked to stop before everything had started. */
async function unlessAsked<T>(signal: AbortSignal, start: () => Promise<T>): Promise<T | undefined> {
  try {
    return await start()
  } catch (error) {
    if (signal.aborted) return undefined
    throw error
  }
}

async function stopAll(run: {
  workers: WorkerPool
  trickling: Promise<void>
  end: AbortController
  requests: StopRequests
  story: Story
  count: number
}): Promise<void> {
  const { workers, trickling, end, requests, story, count } = run
  story.tell(count === 0 ? 'stopping' : 'stopping: running jobs finish first; Ctrl-C again gives them up', true)
  end.abort()
  void requests.insisted.then(() => workers.insist())
  const report = await workers.stop()
  await trickling
  if (count > 0) story.tell(`workers ${stopText(report)}`)
}

async function prepareDemo(url: string): Promise<void> {
  const client = new pg.Client({ connectionString: url, application_name: 'pawl dev caller' })
  await client.connect()
  try {
    await client.query(demoSchemaSql)
  } finally {
    await client.end()
  }
}

interface Started {
  readonly applied: readonly string[]
  readonly pids: readonly number[]
  readonly isDemo: boolean
  readonly modules: readonly string[]
  /** The kinds, projections and sinks. */
  readonly runs: string
}

const demoText = `demo jobs in queue '${demoQueue}', with rows in table pawl_demo.transfer`

function schemaText(applied: readonly string[]): string {
  if (applied.length === 0) return 'up to date'
  return applied.length < 3 ? `applied ${applied.join(', ')}` : `applied ${applied.length} migrations, up to ${applied.at(-1)}`
}

/** What to do next, from another terminal in this folder. */
function hintsOf({ psql }: DevDatabase, { pids, isDemo }: Started): string[] {
  const command = isRepository ? 'npm run pawl --' : 'npx pawl'
  const hint = (text: string, why: string) => `${text.padEnd(34)}  ${why}`
  const own = isRepository
    ? hint('docs/getting-started.md', 'write your own job in five minutes')
    : hint('npx pawl dev ./worker.ts', 'run your own jobs, from a module that exports its Pawl')
  return [
    hint(`${command} jobs list`, 'list live jobs (in another terminal, same folder)'),
    hint(`${command} doctor`, 'find faults and their fixes'),
    ...(pids.length > 1 ? [hint(`kill -9 ${pids[0]}`, 'kill a worker: the other takes over in two seconds')] : []),
    ...(isDemo ? [own] : []),
    ...(psql === undefined ? [] : [psql]),
  ]
}

/** The sources are run as they are only there. */
const isRepository = import.meta.url.endsWith('.ts')

/** The output of `pawl dev`: for people all on stdout, in order; with -o jsonl only events there, and the rest on stderr. */
class Story {
  readonly #terminal: Terminal
  readonly #notes: string[] = []
  /** Lines of jobs that ended before the header was printed. */
  readonly #early: (() => void)[] = []
  #isReady = false
  #isInTrouble = false

  constructor(terminal: Terminal) {
    this.#terminal = terminal
  }

  get isReady(): boolean {
    return this.#isReady
  }

  /** On the way to running; what is asked for there must be seen at once. */
  begin(text: string): void {
    this.#terminal.say(text)
  }

  /** Something a person might want to know. Before everything runs they are kept for the aligned lines. */
  note(text: string): void {
    if (this.#isReady || this.#terminal.output !== 'table') this.tell(text)
    else this.#notes.push(text)
  }

  ready(database: DevDatabase, run: Started): void {
    const { applied, pids, isDemo, modules, runs } = run
    this.#isReady = true
    const terminal = this.#terminal
    if (terminal.output !== 'table') {
      terminal.line(JSON.stringify({ event: 'ready', ...database.facts, applied, workerPids: pids, runs }))
      return this.#tellEarly()
    }
    terminal.line('')
    terminal.pairs([
      ...database.about,
      ['schema', schemaText(applied)],
      ['workers', pids.length === 0 ? 'none' : `${pids.length} processes, pid ${pids.join(' and ')}`],
      ...(pids.length === 0 ? [] : [['jobs', isDemo ? demoText : `${runs}, from ${modules.join(', ')}`] as const]),
      ...this.#notes.map((note) => ['note', note, 'yellow'] as const),
    ])
    terminal.line('')
    for (const [index, hint] of hintsOf(database, run).entries())
      terminal.line(`${terminal.paint((index === 0 ? 'try' : '').padEnd(8), 'dim')}  ${hint}`)
    terminal.pairs([['stop    ', 'Ctrl-C']])
    terminal.line('')
    if (pids.length > 0) terminal.line(jobLineHeader(terminal, true))
    this.#tellEarly()
  }

  #tellEarly(): void {
    for (const tell of this.#early.splice(0)) tell()
  }

  job(line: JobLine, number: number): void {
    if (!this.#isReady) {
      this.#early.push(() => this.job(line, number))
      return
    }
    this.#isInTrouble = false
    if (this.#terminal.output === 'table') this.#terminal.line(jobLineText(this.#terminal, line, number))
    else this.#terminal.line(JSON.stringify({ event: 'job', worker: number, ...line }))
  }

  tell(text: string, isNewParagraph = false): void {
    if (this.#terminal.output !== 'table') return this.#terminal.say(text)
    if (isNewParagraph) this.#terminal.line('')
    this.#terminal.line(`${this.#terminal.paint(clockTime(new Date()), 'dim')}  ${text}`)
  }

  /** Said once, until a job has gone through again. */
  readonly trouble = (error: unknown): void => {
    if (this.#isInTrouble) return
    this.#isInTrouble = true
    this.tell(`demo jobs cannot be added, retrying: ${error instanceof Error ? error.message : String(error)}`)
  }
}

// The tree of commands. Each command is a module of its own; here is what they share: flags, help, and how errors end the process.

import { Command, CommanderError, Help, Option } from 'commander'
import { release } from 'pawl/admin'
import type { DatabaseFlags } from './database.ts'
import { addDev } from './dev/dev.ts'
import { addDoctor } from './doctor/doctor.ts'
import { exitCodes, reportFailure } from './failure.ts'
import { addJobs } from './jobs.ts'
import { addMigrate } from './migrate.ts'
import { addRecords } from './nouns/records.ts'
import { type Output, outputs, type Streams, Terminal } from './terminal.ts'
import { addVersion } from './version.ts'
import { addWorker } from './worker.ts'

/** The flags that every command has. */
export interface GlobalFlags extends DatabaseFlags {
  readonly output: Output
  readonly json?: boolean
  readonly tenant?: string
  readonly color: boolean
  readonly quiet?: boolean
  readonly verbose?: boolean
}

export interface Context<Flags = object> {
  readonly terminal: Terminal
  readonly flags: GlobalFlags & Flags
  readonly database: DatabaseFlags
  readonly tenant: string | undefined
}

/** Answers its exit code, or nothing when all went well. */
export type Action<Flags> = (context: Context<Flags>, ...args: never[]) => Promise<number> | Promise<void>

/** The exit code of the command line, once everything that it started has ended. */
export async function run(argv: readonly string[], streams: Streams = process): Promise<number> {
  let exit: number = exitCodes.ok
  const program = buildProgram(streams, (code) => {
    exit = code
  })
  if (argv.length <= 2) {
    program.outputHelp()
    return exit
  }
  try {
    await program.parseAsync(argv)
    return exit
  } catch (error) {
    if (!(error instanceof CommanderError)) throw error
    return error.exitCode === 0 ? exitCodes.ok : exitCodes.usage
  }
}

function buildProgram(streams: Streams, onExit: (code: number) => void): Command {
  const program = new Command('pawl')
  program
    .description('Background work on the PostgreSQL you already run: its effects there are applied exactly once.')
    .version(`pawl ${release}`, '-V, --version', 'print the release')
    .addOption(new Option('-o, --output <format>', 'output format').choices([...outputs]).default('table'))
    .option('--json', 'the same as -o json')
    .option('--database-url <url>', 'the database (or PAWL_DATABASE_URL, or DATABASE_URL)')
    .addOption(
      new Option('--pooler <mode>', "'transaction' if that URL is of a pgbouncer in transaction mode")
        .choices(['none', 'transaction'])
        .env('PAWL_POOLER'),
    )
    .addOption(new Option('--direct-url <url>', 'the same database without the pooler').env('PAWL_DIRECT_URL'))
    .option('--tenant <name>', 'work on the jobs of this tenant')
    .option('--no-color', 'print no colours (or NO_COLOR); only a terminal gets them')
    .option('-q, --quiet', 'print only errors on stderr')
    .option('-v, --verbose', 'print errors with their stack')
    .helpOption('-h, --help', 'print this help')
    .helpCommand(false)
    .configureHelp({ showGlobalOptions: true, sortSubcommands: false, formatHelp: commandsFirst })
    .showHelpAfterError('(run it with --help for examples)')
    .configureOutput({
      writeOut: (text) => void streams.stdout.write(text),
      writeErr: (text) => void streams.stderr.write(text),
    })
    .exitOverride()
  program.addHelpText('before', exampleText(['pawl dev', 'pawl jobs list --state dead']))
  const adder: CommandAdder = {
    add: (parent, name, { summary, examples }) => {
      const command = (parent ?? program)
        .command(name)
        .description(summary)
        .summary(summary.split(/[.:]/)[0]!)
        .copyInheritedSettings(program)
        .helpCommand(false)
      return command.addHelpText('before', exampleText(examples))
    },
    does: (command, action) => {
      command.action(async (...given: unknown[]) => {
        // commander passes the arguments, then the command's own options, then the command.
        const args = given.slice(0, -2)
        const flags: GlobalFlags = command.optsWithGlobals()
        const terminal = openTerminal(flags, streams)
        onExit(await runAction({ terminal, flags }, (context) => action(context as never, ...(args as never[]))))
      })
    },
  }
  addDev(adder)
  addWorker(adder)
  addMigrate(adder)
  addDoctor(adder)
  addJobs(adder)
  addRecords(adder)
  addVersion(adder)
  return program
}

/** What can be done before how: commander lists commands below the options that all of them have. */
function commandsFirst(command: Command, help: Help): string {
  const sections = Help.prototype.formatHelp
    .call(help, command, help)
    .split(/\n(?=(?:Arguments|Options|Global Options|Commands):\n)/)
  const isCommands = (section: string): boolean => section.startsWith('Commands:')
  const [usage, ...rest] = sections
  return [usage!, ...rest.filter(isCommands), ...rest.filter((section) => !isCommands(section))]
    .map((section) => section.trimEnd())
    .join('\n\n')
    .concat('\n')
}

export interface CommandAdder {
  add(parent: Command | undefined, name: string, about: { summary: string; examples: readonly string[] }): Command
  does<Flags = object>(command: Command, action: Action<Flags>): void
}

function openTerminal(flags: GlobalFlags, streams: Streams): Terminal {
  return new Terminal(
    {
      output: flags.json ? 'json' : flags.output,
      isQuiet: flags.quiet ?? false,
      isVerbose: flags.verbose ?? false,
      mayColour: flags.color,
    },
    streams,
  )
}

async function runAction(
  { terminal, flags }: Pick<Context, 'terminal' | 'flags'>,
  action: (context: Context) => Promise<number> | Promise<void>,
): Promise<number> {
  try {
    return (await action({ terminal, flags, database: flags, tenant: flags.tenant })) ?? exitCodes.ok
  } catch (error) {
    return reportFailure(terminal, error)
  }
}

function exampleText(examples: readonly string[]): string {
  return `${examples.length === 1 ? 'Example' : 'Examples'}:\n${examples.map((example) => `  $ ${example}`).join('\n')}\n`
}

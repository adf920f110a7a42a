// The tree of commands, made from their tables: flags, help, and how errors end the process.

import { Command as Commander, CommanderError, Help, Option } from 'commander'
import type { ErrorCode } from 'pawl'
import { release } from 'pawl/admin'
import { print } from './answers.ts'
import { type AnyCommand, type Context, type Flag, type Flags, type FlagValues, globalFlags, type Noun } from './command.ts'
import { dev } from './dev/dev.ts'
import { doctor } from './doctor/doctor.ts'
import { exitCodes, reportFailure } from './failure.ts'
import { migrate } from './migrate.ts'
import { batches } from './nouns/batches.ts'
import { documents } from './nouns/documents.ts'
import { jobs } from './nouns/jobs.ts'
import { records } from './nouns/records.ts'
import { type Streams, Terminal } from './terminal.ts'
import { version } from './version.ts'
import { worker } from './worker/worker.ts'

/** In the order of the help. */
export const commands: readonly (AnyCommand | Noun)[] = [dev, worker, migrate, doctor, jobs, records, batches, documents, version]

/** The exit code of the command line, once everything that it started has ended. */
export async function run(argv: readonly string[], streams: Streams = process, table = commands): Promise<number> {
  let exit: number = exitCodes.ok
  const program = buildProgram(streams)
  for (const each of table) {
    if ('run' in each) addCommand(program, each)
    else for (const verb of each.verbs) addCommand(nounOf(program, each), verb, each.next)
  }
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

  function addCommand(parent: Commander, row: AnyCommand, next?: Noun['next']): void {
    const added = addNamed(parent, row)
    for (const [syntax, doc, byDefault] of row.args ?? []) added.argument(syntax, doc, byDefault)
    for (const [name, flag] of Object.entries<Flag<unknown>>(row.flags ?? {})) added.addOption(optionOf(name, flag))
    added.action(async (...values: unknown[]) => {
      // commander passes the arguments, then the command's own options, then the command.
      exit = await runCommand(row, { flags: added.optsWithGlobals(), args: values.slice(0, -2), streams, next })
    })
  }
}

function buildProgram(streams: Streams): Commander {
  const program = new Commander('pawl')
    .description('Background work on the PostgreSQL you already run: its effects there are applied exactly once.')
    .version(`pawl ${release}`, '-V, --version', 'print the release')
    .helpOption('-h, --help', 'print this help')
    .helpCommand(false)
    .configureHelp({ showGlobalOptions: true, sortSubcommands: false, formatHelp: commandsFirst })
    .showHelpAfterError('(run it with --help for examples)')
    .configureOutput({
      writeOut: (text) => void streams.stdout.write(text),
      writeErr: (text) => void streams.stderr.write(text),
    })
    .exitOverride()
    .addHelpText('before', exampleText(['pawl dev', 'pawl jobs list --state dead']))
  for (const [name, flag] of Object.entries<Flag<unknown>>(globalFlags)) program.addOption(optionOf(name, flag))
  return program
}

function nounOf(program: Commander, noun: Noun): Commander {
  return program.commands.find((each) => each.name() === noun.name) ?? addNamed(program, noun)
}

function addNamed(parent: Commander, { name, summary, examples }: Pick<Noun, 'name' | 'summary' | 'examples'>): Commander {
  return parent
    .command(name)
    .description(summary)
    .summary(summary.split(/[.:]/)[0]!)
    .copyInheritedSettings(parent)
    .helpCommand(false)
    .addHelpText('before', exampleText(examples))
}

function optionOf(
  name: string,
  { syntax, doc, choices, read, default: byDefault, isRequired = false, env }: Flag<unknown>,
): Option {
  const option = new Option(syntax, doc).makeOptionMandatory(isRequired)
  if (option.attributeName() !== name) throw new Error(`${syntax} is ${option.attributeName()}, not ${name}`)
  if (choices !== undefined) option.choices([...choices])
  if (read !== undefined) option.argParser(read)
  // A switch without a default is shorter in the help.
  if (byDefault !== undefined && !option.isBoolean()) option.default(byDefault)
  if (env !== undefined) option.env(env)
  return option
}

interface Given {
  readonly flags: Record<string, unknown>
  readonly args: readonly unknown[]
  readonly streams: Streams
  readonly next: Partial<Readonly<Record<ErrorCode, string>>> | undefined
}

async function runCommand(row: AnyCommand, { flags, args, streams, next }: Given): Promise<number> {
  const all: Flags = { ...globalFlags, ...row.flags }
  for (const [name, { default: byDefault }] of Object.entries(all)) flags[name] ??= byDefault
  const { output, json, quiet, verbose, color, tenant, ...database } = flags as FlagValues<typeof globalFlags>
  const terminal = new Terminal({ output: json ? 'json' : output, isQuiet: quiet, isVerbose: verbose, mayColour: color }, streams)
  const report = (error: unknown): number => reportFailure(terminal, error, next)
  const context: Context = { terminal, flags, database, tenant, report }
  try {
    const answer = await row.run(context as never, ...(args as never[]))
    return typeof answer === 'object' ? print(terminal, answer) : answer
  } catch (error) {
    return report(error)
  }
}

/** Commands before options: commander lists them after the options that all of them have. */
function commandsFirst(command: Commander, help: Help): string {
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

function exampleText(examples: readonly string[]): string {
  return `${examples.length === 1 ? 'Example' : 'Examples'}:\n${examples.map((example) => `  $ ${example}`).join('\n')}\n`
}

// `pawl doctor`: looks at everything that Pawl rests on and names each fault with its fix.

import { durationMs } from 'pawl'
import pg from 'pg'
import { requireDatabase, withoutPassword } from '../database.ts'
import { exitCodes } from '../failure.ts'
import type { CommandAdder, Context } from '../program.ts'
import { counted, type Terminal } from '../terminal.ts'
import { type Check, type Finding, fault, type Patient, skipped } from './check.ts'
import { checkDrift } from './drift-check.ts'
import { type CheckedSchema, checkOwner, checkPawlClock, checkRights, checkSchema } from './schema-checks.ts'
import { checkClock, checkListen, checkNode, checkPath, checkPostgres, checkSettings, checkSnapshots } from './server-checks.ts'
import { checkAlerts, checkKinds, checkProjections, checkWorkers } from './work-checks.ts'

interface Flags {
  readonly longTransaction: string
}

const outside: readonly (readonly [string, Check])[] = [
  ['postgresql', checkPostgres],
  ['settings', checkSettings],
  ['search path', checkPath],
  ['clock', checkClock],
  ['listen', checkListen],
  ['transactions', checkSnapshots],
]

const inside: readonly (readonly [string, Check])[] = [
  ['drift', checkDrift],
  ['owner', checkOwner],
  ['rights', checkRights],
  ['pawl.now()', checkPawlClock],
  ['workers', checkWorkers],
  ['alerts', checkAlerts],
  ['kinds', checkKinds],
  ['projections', checkProjections],
]

export function addDoctor(adder: CommandAdder): void {
  const command = adder.add(undefined, 'doctor', {
    summary:
      'Find faults and their fixes: Node, the server and its settings, search path, schema, owner, privileges, clock, workers, alerts. The exit code is 6 if there is a fault.',
    examples: ['pawl doctor', 'pawl doctor -o json'],
  })
  command.option('--long-transaction <duration>', 'report transactions that are open for longer', '5m')
  adder.does<Flags>(command, examine)
}

async function examine({ terminal, flags, database, tenant }: Context<Flags>): Promise<number> {
  const longTransactionMs = durationMs(flags.longTransaction)
  const { url, source } = await requireDatabase(database)
  const client = new pg.Client({
    connectionString: url,
    application_name: 'pawl doctor',
    connectionTimeoutMillis: 5000,
    query_timeout: 30_000,
  })
  client.on('error', () => undefined)
  await client.connect()
  try {
    terminal.say(`Checking ${withoutPassword(url)} (from ${source}) ...`)
    return print(terminal, await examineAll({ url, client, tenant, longTransactionMs }))
  } finally {
    await client.end()
  }
}

async function examineAll(patient: Patient): Promise<Finding[]> {
  const findings = [checkNode()]
  for (const [name, check] of outside) findings.push(...(await examineOne(name, check, patient)))
  let schema: CheckedSchema | undefined
  findings.push(
    ...(await examineOne(
      'schema',
      async () => {
        schema = await checkSchema(patient)
        return schema.findings
      },
      patient,
    )),
  )
  for (const [name, check] of inside) {
    if (schema?.canLookInside || (name === 'drift' && schema?.isChanged))
      findings.push(...(await examineOne(name, check, patient)))
    else findings.push(skipped(name, 'needs the schema'))
  }
  return findings
}

/** A check that cannot be made is a fault by itself: it says what stood in its way. */
async function examineOne(name: string, check: Check, patient: Patient): Promise<Finding[]> {
  try {
    return await check(patient)
  } catch (error) {
    return [
      fault(
        name,
        `The check failed: ${error instanceof Error ? error.message : String(error)}.`,
        'fix the faults above first, then run pawl doctor again as a role that may read the catalogs',
      ),
    ]
  }
}

const colours = { ok: 'green', fault: 'red', skipped: 'dim' } as const

function print(terminal: Terminal, findings: readonly Finding[]): number {
  const faults = findings.filter(({ state }) => state === 'fault').length
  if (terminal.output === 'json') terminal.json({ faults, checks: findings })
  else if (terminal.output === 'jsonl') for (const finding of findings) terminal.json(finding)
  else {
    const width = Math.max(...findings.map(({ check }) => check.length))
    const shown = (text: string): string => terminal.wrapped(text, 7 + 2 + width + 2)
    for (const { check, state, what, fix } of findings) {
      terminal.line(`${terminal.paint(state.padEnd(7), colours[state])}  ${check.padEnd(width)}  ${shown(what)}`)
      if (fix !== undefined) terminal.line(`${' '.repeat(7)}  ${terminal.paint('fix'.padStart(width), 'dim')}  ${shown(fix)}`)
    }
  }
  terminal.say(faults === 0 ? 'No faults.' : `${counted(faults, 'fault')}.`)
  return faults === 0 ? exitCodes.ok : exitCodes.faultsFound
}

// `pawl doctor`: checks what Pawl depends on, and prints each fault with its fix.

import { durationMs } from 'pawl/admin'
import pg from 'pg'
import type { Answer } from '../answers.ts'
import { command, text, withDefault } from '../command.ts'
import { requireDatabase, withoutPassword } from '../database.ts'
import { exitCodes } from '../failure.ts'
import { counted, type Terminal } from '../terminal.ts'
import { type Check, type Finding, fault, type Patient, skipped } from './check.ts'
import { checkDrift } from './drift-check.ts'
import { type CheckedSchema, checkOwner, checkPawlClock, checkRights, checkSchema } from './schema-checks.ts'
import { checkClock, checkListen, checkNode, checkPath, checkPostgres, checkSettings, checkSnapshots } from './server-checks.ts'
import { checkAlerts, checkKinds, checkProjections, checkWorkers } from './work-checks.ts'

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

export const doctor = command({
  name: 'doctor',
  summary:
    'Find faults and their fixes: Node, the server and its settings, search path, schema, owner, privileges, clock, workers, alerts. The exit code is 6 if there is a fault.',
  examples: ['pawl doctor', 'pawl doctor -o json'],
  flags: {
    longTransaction: withDefault(text('--long-transaction <duration>', 'report transactions that are open for longer'), '5m'),
  },
  run: async ({ terminal, flags, database, tenant }) => {
    const longTransactionMs = durationMs(flags.longTransaction)
    const { url, source } = await requireDatabase(database)
    terminal.say(`Checking ${withoutPassword(url)} (from ${source}) ...`)
    return answerOf(await examine({ url, tenant, longTransactionMs }))
  },
})

async function examine({ url, tenant, longTransactionMs }: Omit<Patient, 'client'>): Promise<Finding[]> {
  const client = new pg.Client({
    connectionString: url,
    application_name: 'pawl doctor',
    connectionTimeoutMillis: 5000,
    query_timeout: 30_000,
  })
  client.on('error', () => undefined)
  await client.connect()
  try {
    return await examineAll({ url, client, tenant, longTransactionMs })
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

/** A check that fails is a fault by itself, with its error. */
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

function answerOf(findings: readonly Finding[]): Answer {
  const faults = findings.filter(({ state }) => state === 'fault').length
  return {
    json: { faults, checks: findings },
    lines: findings,
    show: (terminal) => show(terminal, findings),
    say: [faults === 0 ? 'No faults.' : `${counted(faults, 'fault')}.`],
    exit: faults === 0 ? exitCodes.ok : exitCodes.faultsFound,
  }
}

function show(terminal: Terminal, findings: readonly Finding[]): void {
  const width = Math.max(...findings.map(({ check }) => check.length))
  const wrapped = (text: string): string => terminal.wrapped(text, 7 + 2 + width + 2)
  for (const { check, state, what, fix } of findings) {
    terminal.line(`${terminal.paint(state.padEnd(7), colours[state])}  ${check.padEnd(width)}  ${wrapped(what)}`)
    if (fix !== undefined) terminal.line(`${' '.repeat(7)}  ${terminal.paint('fix'.padStart(width), 'dim')}  ${wrapped(fix)}`)
  }
}

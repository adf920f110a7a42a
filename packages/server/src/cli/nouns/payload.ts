// A payload from the command line: JSON as an argument, from a file, or from stdin.

import { readFile } from 'node:fs/promises'
import { text } from 'node:stream/consumers'
import { UsageError } from '../failure.ts'
import type { Terminal } from '../terminal.ts'

/** `what`: what the command calls it. */
export async function readPayload(given: string, { streams }: Terminal, what = 'payload'): Promise<unknown> {
  const json =
    given === '-' ? await text(streams.stdin) : given.startsWith('@') ? await readPayloadFile(given.slice(1), what) : given
  try {
    const payload: unknown = JSON.parse(json)
    assertExact(json, what)
    return payload
  } catch (error) {
    if (error instanceof UsageError) throw error
    throw new UsageError(
      `The ${what} is not valid JSON: ${(error as Error).message}.`,
      `quote it for the shell: '{"name": "value"}'`,
    )
  }
}

const stringOrInteger = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g

/** JSON.parse rounds a long integer in silence. */
function assertExact(json: string, what: string): void {
  for (const [token] of json.matchAll(stringOrInteger))
    if (/^-?\d{16,}$/.test(token) && BigInt(token) !== BigInt(Number(token)))
      throw new UsageError(
        `The ${what} has the number ${token.slice(0, 40)}, which a JavaScript number cannot represent exactly.`,
        `pass it as a string: "${token.slice(0, 40)}"`,
      )
}

async function readPayloadFile(path: string, what: string): Promise<string> {
  try {
    return await readFile(path, 'utf8')
  } catch (error) {
    throw new UsageError(`The file of the ${what} cannot be read: ${(error as Error).message}.`, 'give the path after the @')
  }
}

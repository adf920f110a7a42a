// A sender that trickles one row in single characters must not cost more than its length.

import { expect, test } from 'vitest'
import { inPiecesOf, outcome, type TextFormat } from '../../../test/support/row-readers.ts'

const [few, many] = [80_000, 640_000]

async function cpuMs(format: TextFormat, text: string): Promise<number> {
  const before = process.cpuUsage()
  const { error } = await outcome(format, inPiecesOf(text, [1]), { rowCharsMax: 10_000_000 })
  const { user, system } = process.cpuUsage(before)
  expect(error).toBeUndefined()
  return (user + system) / 1000
}

test.each([
  ['csv', 'without quotes', (chars: number) => `h\n${'a'.repeat(chars)}\n`],
  ['csv', 'with line breaks in quotes', (chars: number) => `h\n"${'a\n'.repeat(chars / 2)}"\n`],
  ['csv', 'with doubled quotes', (chars: number) => `h\n"${'""'.repeat(chars / 2)}"\n`],
  ['ndjson', 'of one string', (chars: number) => `{"a":"${'a'.repeat(chars)}"}\n`],
  ['json', 'of one string', (chars: number) => `[{"a":"${'a'.repeat(chars)}"}]`],
  ['json', 'of backslashes', (chars: number) => `[{"a":"${'\\\\'.repeat(chars / 2)}"}]`],
] as const)('[R10] a row of %s %s that trickles in costs linear time', async (format, _what, text) => {
  // Eight times the length: linear is 8, quadratic is 64. The best of three: the first runs are not compiled yet.
  const best = async (chars: number) => {
    const runs: number[] = []
    for (let run = 0; run < 3; run++) runs.push(await cpuMs(format, text(chars)))
    return Math.min(...runs)
  }
  const short = await best(few)
  expect((await best(many)) / short).toBeLessThan(24)
})

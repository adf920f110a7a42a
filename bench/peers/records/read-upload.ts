// An upload without its parser: rows that were read before are staged, validated as a whole and previewed by Pawl's own code. It shows what
// the database's part costs, since how a file is parsed and which rules its columns have is different for everyone.

import { createReadStream } from 'node:fs'
import type { Pawl } from 'pawl'
import { createPool } from '../../../packages/pawl/src/db/driver.ts'
import { StatementNames } from '../../../packages/pawl/src/db/statement.ts'
import type { RecordsCore } from '../../../packages/pawl/src/records/core.ts'
import { Ends } from '../../../packages/pawl/src/records/ends.ts'
import { UploadBytes } from '../../../packages/pawl/src/records/formats/bytes.ts'
import { readCsv } from '../../../packages/pawl/src/records/formats/csv.ts'
import { type ReadRow, RowReader } from '../../../packages/pawl/src/records/rows/reader.ts'
import { type DefinedSet, defineSet } from '../../../packages/pawl/src/records/sets.ts'
import { batchRows, type Place } from '../../../packages/pawl/src/records/staging.ts'
import { Sweep } from '../../../packages/pawl/src/records/sweep.ts'
import { begin, fill } from '../../../packages/pawl/src/records/upload.ts'
import { loads } from './rows.ts'

const ensureScope = `insert into pawl.record_scope (record_set, scope) values ('loads', '["1"]') on conflict do nothing`

export class ReadUpload {
  readonly #core: RecordsCore
  readonly #set: DefinedSet
  readonly #batches: readonly (readonly ReadRow[])[]

  private constructor(core: RecordsCore, set: DefinedSet, batches: readonly (readonly ReadRow[])[]) {
    this.#core = core
    this.#set = set
    this.#batches = batches
  }

  static async of(pawl: Pawl, file: string): Promise<ReadUpload> {
    const set = defineSet('loads', loads)
    const pool = createPool(pawl.config.database, 'bench', 10)
    await pool.query(ensureScope)
    return new ReadUpload(
      {
        pool,
        sets: new Map([[set.name, set]]),
        kept: new Set(),
        ends: new Ends(),
        sweep: new Sweep(),
        jobs: () => pawl.jobs,
        logger: pawl.config.logger,
        names: new StatementNames(),
      },
      set,
      await read(set, file),
    )
  }

  /** Gives the submission's id. */
  async run(): Promise<string> {
    const { rows } = await this.#core.pool.query<{ id: string }>('select id::text from pawl.record_scope')
    const place: Place = { tenant: '', set: this.#set, scopeId: rows[0]!.id }
    const staged = await begin(this.#core, place, {
      format: 'csv',
      types: [...this.#set.types.keys()],
      attributes: null,
    })
    const batches = this.#batches
    await fill(this.#core, staged, {
      async *batches() {
        yield* batches
      },
      bytes: () => 0,
      ignoredSheets: [],
      end: () => null,
      again: () => '',
    })
    return staged.id
  }

  close(): Promise<void> {
    return this.#core.pool.end()
  }
}

async function read(set: DefinedSet, file: string): Promise<ReadRow[][]> {
  const bytes = new UploadBytes(createReadStream(file), { name: 'limits.bytesMax', bytesMax: set.limits.bytesMax }, undefined)
  const reader = new RowReader(set)
  const found: ReadRow[] = []
  for await (const rows of readCsv(bytes.text(), set.limits)) for (const row of rows) found.push(await reader.read(row))
  const batches: ReadRow[][] = []
  for (let from = 0; from < found.length; from += batchRows) batches.push(found.slice(from, from + batchRows))
  return batches
}

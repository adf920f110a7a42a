// The options of what reads and uploads records, as tables.

import {
  anyText,
  boolean,
  callback,
  duration,
  integer,
  nested,
  oneOf,
  option,
  reason,
  record,
  required,
  signal,
  type TableOf,
  text,
  transaction,
} from '../kernel/options.ts'
import type { EndedOptions } from './ends.ts'
import type { ExportOptions } from './formats/export.ts'
import { formats } from './formats/readers.ts'
import type { ListRecordsOptions } from './reads.ts'
import { submissionStates } from './states.ts'
import type { ListSubmissionsOptions } from './submissions.ts'
import type { AppendOptions, At, PageOptions, PutOptions, RowKind, SubmitOptions, UploadOptions } from './types.ts'

export const at = option<At>(
  'one of { number }, { submission } and { time: Date }',
  { otherwise: 'as committed now', doc: 'Read as of a number, a submission or a time.' },
  isAt,
)

const delimiter = option<string>(
  'one character other than a quote, letter, digit, space or line break',
  { otherwise: 'a comma', doc: "The separator of CSV cells, such as ';' or a tab." },
  (given) => typeof given === 'string' && /^(?:\t|[^\s"\p{L}\p{N}\ud800-\udfff\0])$/u.test(given),
)

const decimal = oneOf(['.', ','], { otherwise: 'a point', doc: "The decimal sign of numbers in a CSV: ',' for 1234,5." })

export const uploadTable = {
  format: required(oneOf(formats, { doc: "The format of the file. 'xlsx' needs formats: [xlsx()] of the record set." })),
  delimiter,
  decimal,
  attributes: record({ doc: 'Attributes of the scope. Each can be set once.' }),
  name: text({ from: 0, to: 500, doc: 'The name of the file, for display.' }),
  by: text({ from: 0, to: 200, doc: 'The person or program that sent it.' }),
  expect: nested(
    {
      bytes: integer({ from: 0, to: Number.MAX_SAFE_INTEGER, doc: 'The expected size.' }),
      sha256: anyText('The expected digest, in hexadecimal.'),
    },
    { doc: 'The expected size and digest. Any other upload counts as truncated or damaged.' },
  ),
  restart: anyText('The id of an interrupted upload to start over.'),
  signal: signal({ doc: 'Ends the upload.' }),
  onProgress: callback<NonNullable<UploadOptions['onProgress']>>({ doc: 'Called after each batch.' }),
} satisfies TableOf<UploadOptions>

export const listRecordsTable = {
  type: anyText('Only records of this type.'),
  filter: record({ doc: 'Columns that must have these values.' }),
  at,
  withDeleted: boolean({ default: false, doc: 'true: include deleted records.' }),
  limit: integer({ from: 1, to: 10_000, default: 100, doc: 'The size of a page. Large records make it smaller.' }),
  after: anyText('`next` of the previous page.'),
} satisfies TableOf<ListRecordsOptions>

export const exportTable = {
  format: required(oneOf(['csv', 'ndjson'], { doc: 'The format of the export.' })),
  type: anyText('Only records of this type.'),
  at,
  delimiter,
  decimal,
} satisfies TableOf<ExportOptions>

const scopeWrite = {
  tx: transaction({ doc: 'Your own transaction.' }),
  by: text({ from: 0, to: 200, doc: 'The acting person or program.' }),
  attributes: record({ doc: 'Attributes of the scope. Each can be set once.' }),
  once: text({
    to: 400,
    doc: 'A key that makes the write happen once in its scope. A repeat within 30 days returns the first result.',
  }),
}

export const putTable = {
  ...scopeWrite,
  number: anyText("Write only if the record's current version has this number; '0': only if there is none."),
} satisfies TableOf<PutOptions>

export const appendTable = {
  ...scopeWrite,
  revision: anyText('Append only if the scope is still at this revision.'),
} satisfies TableOf<AppendOptions>

export const submitTable = {
  revision: integer({ from: 0, to: 2_147_483_647, doc: 'Submit only if the submission is still at this revision.' }),
  tx: transaction({ doc: 'Your own transaction.' }),
} satisfies TableOf<SubmitOptions>

export const endedTable = {
  timeout: duration({ from: 1, to: 2_147_483_647, default: '15m', doc: 'How long to wait.' }),
  signal: signal({ doc: 'Ends the wait.' }),
} satisfies TableOf<EndedOptions>

export const eraseTable = {
  reason: reason('The reason, stored with the record.'),
  by: text({ from: 0, to: 200, doc: 'The acting person or program.' }),
  tx: transaction({ doc: 'Your own transaction.' }),
}

export const historyTable = {
  limit: integer({ from: 1, to: 10_000, default: 100, doc: 'The maximum number of versions to list.' }),
  before: anyText('The last number of the previous page.'),
}

export const submissionsTable = {
  state: oneOf(submissionStates, { otherwise: 'any', doc: 'Only submissions in this state.' }),
  before: anyText('The last id of the previous page.'),
  limit: integer({ from: 1, to: 500, default: 50, doc: 'The size of a page.' }),
} satisfies TableOf<ListSubmissionsOptions>

/** Of `rows`: what the rows of a submission do. */
export const rowKinds: readonly RowKind[] = ['created', 'updated', 'unchanged', 'missing', 'invalid']

export const pageTable = {
  limit: integer({ from: 1, to: 10_000, default: 100, doc: 'The size of a page.' }),
  after: anyText('`next` of the previous page.'),
} satisfies TableOf<PageOptions>

function isAt(given: unknown): boolean {
  if (typeof given !== 'object' || given === null) return false
  const { number, submission, time } = given as { number?: unknown; submission?: unknown; time?: unknown }
  return typeof number === 'string' || typeof submission === 'string' || (time instanceof Date && !Number.isNaN(time.getTime()))
}

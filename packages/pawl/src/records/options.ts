// The options of record sets and of what reads and uploads records, as tables. Those of a column are beside its rules: rows/columns.ts.

import type { StandardSchema } from '../jobs/types.ts'
import {
  anyText,
  boolean,
  callback,
  duration,
  integer,
  list,
  nested,
  type Option,
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
import type {
  AppendOptions,
  At,
  FileFormat,
  PageOptions,
  PutOptions,
  RecordSetOptions,
  RecordTypeOptions,
  RowKind,
  SubmitOptions,
  UploadLimits,
  UploadOptions,
} from './types.ts'

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

const names = (doc: string) => list(text({ to: 200, doc: 'A name.' }), { doc })

const ms = { from: 0, to: 86_400_000 }
const keepMs = { from: 1, to: 36_500 * 86_400_000 }
const limit = { from: 1, to: Number.MAX_SAFE_INTEGER }

export const endedKeep = '1d'

const format = option<FileFormat>(
  "a format such as xlsx() of 'pawl/records/xlsx'",
  { doc: 'One format.' },
  (given) => (given as FileFormat | null)?.name === 'xlsx' && typeof (given as FileFormat).read === 'function',
)

export const recordSetTable = {
  scope: required(names('The names of what makes a scope.')),
  attributes: { ...names('Names of attributes of a scope. Each is set once.'), default: [] } as Option<readonly string[]>,
  types: required(record({ doc: 'The types of its rows.' })) as Option<Readonly<Record<string, RecordTypeOptions>>>,
  typeColumn: text({ to: 200, default: 'type', doc: 'The column that names the type of a row, when there are several types.' }),
  missing: oneOf(['reject', 'keep', 'tombstone'], {
    default: 'keep',
    doc: 'What becomes of records that a submission leaves out.',
  }),
  unknownColumns: oneOf(['reject', 'ignore', 'keep'], { default: 'reject', doc: 'What becomes of undeclared columns.' }),
  schemaVersion: integer({ from: 1, to: 2_147_483_647, default: 1, doc: 'Raise it when the columns change.' }),
  classify: callback<NonNullable<RecordSetOptions['classify']>>({ doc: 'Returns a word that is stored with each version.' }),
  events: oneOf(['none', 'submission', 'record'], {
    default: 'submission',
    doc: 'One event per commit, or also one per record.',
  }),
  retry: nested(
    {
      attempts: integer({ from: 1, to: 1_000_000, default: 5, doc: 'Failed attempts without progress until it fails.' }),
      initialMs: integer({ ...ms, default: 1000, doc: 'The first wait between attempts.' }),
      maxMs: integer({ ...ms, default: 60_000, doc: 'The longest wait between attempts.' }),
      jitter: boolean({ default: true, doc: 'true: waits are random, up to their length.' }),
    },
    { doc: 'How often a failed apply is tried again.' },
  ),
  formats: {
    ...list(format, { doc: 'Formats besides CSV, NDJSON and JSON.' }),
    expects: "an array of formats such as xlsx() of 'pawl/records/xlsx'",
    default: [],
  } as Option<readonly FileFormat[]>,
  limits: nested(
    {
      bytesMax: integer({ ...limit, default: 1_073_741_824, doc: 'Bytes of a file.' }),
      rowsMax: integer({ ...limit, default: 2_000_000, doc: 'Rows of an upload.' }),
      // A row is one string here and in PostgreSQL.
      rowCharsMax: integer({ from: 1, to: 100_000_000, default: 1_000_000, doc: 'Characters of a row.' }),
      errorsMax: integer({ ...limit, default: 1000, doc: 'Row errors that are stored. All are counted.' }),
    } satisfies TableOf<UploadLimits>,
    { doc: 'How large a file may be.' },
  ),
  chunkRows: integer({ from: 1, to: 100_000, default: 5000, doc: 'Changes that are applied in one transaction.' }),
  keep: nested(
    {
      validated: duration({ ...keepMs, default: '7d', doc: 'How long a validated upload stays.' }),
      uploading: duration({ ...keepMs, default: '1h', doc: 'How long an upload waits for its next batch.' }),
      ended: duration({ ...keepMs, default: endedKeep, doc: 'How long any other that is not submitted stays.' }),
    },
    { doc: 'How long uploads stay that are not submitted.' },
  ),
} satisfies TableOf<RecordSetOptions>

export const recordTypeTable = {
  key: required(
    option<string | readonly string[]>(
      'the name of a column, or an array of names',
      { doc: 'The columns that name a row within its scope and type.' },
      (given) =>
        typeof given === 'string' ||
        (Array.isArray(given) && given.length > 0 && given.every((name) => typeof name === 'string')),
    ),
  ),
  columns: required(record({ doc: 'Its columns, by name.' })) as Option<RecordTypeOptions['columns']>,
  schema: option<StandardSchema>(
    'a Standard Schema',
    { doc: 'Checks what columns cannot say.' },
    (given) => typeof (given as Partial<StandardSchema> | null)?.['~standard'] === 'object',
  ),
} satisfies TableOf<RecordTypeOptions>

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

// The options of record sets, and of what reads and uploads records, as tables.

import { isRegExp } from 'node:util/types'
import { retryTable, standardSchema } from '../jobs/options.ts'
import {
  anyText,
  boolean,
  callback,
  duration,
  integer,
  list,
  mapOf,
  nested,
  type Option,
  oneOf,
  option,
  ownTx,
  type Resolved,
  reason,
  record,
  required,
  signal,
  type TableOf,
  text,
  tuning,
  type WaitOptions,
  withDefaults,
} from '../kernel/options.ts'
import type { ExportOptions } from './formats/export.ts'
import type { ListRecordsOptions } from './reads.ts'
import { columnTypes, dateParts } from './rows/columns.ts'
import { canonicalDecimal } from './rows/decimal.ts'
import { submissionStates } from './states.ts'
import type { ListSubmissionsOptions } from './submissions.ts'
import type {
  AppendOptions,
  At,
  CancelSubmissionOptions,
  Column,
  FileFormat,
  PageOptions,
  PutOptions,
  RecordSetOptions,
  RecordTypeOptions,
  RowKind,
  SubmitOptions,
  UploadOptions,
} from './types.ts'

const bound = (doc: string) =>
  option<number | string>('a number, or a string of its digits', { doc }, (given) => {
    const isNumeric = typeof given === 'number' || typeof given === 'string'
    return isNumeric && canonicalDecimal(String(given)) !== undefined
  })

export const columnTable = {
  type: required(oneOf(columnTypes, { doc: 'The type of its values.' })),
  required: boolean({ otherwise: 'false, and true in a key', doc: 'true: every row must have a value.' }),
  min: bound('The smallest number.'),
  max: bound('The largest number.'),
  scale: integer({ from: 0, to: 100, otherwise: 'any number of them', doc: 'The maximum number of decimal places of a number.' }),
  oneOf: list(anyText('A value.'), { doc: 'The allowed strings.' }),
  pattern: option<RegExp>('a RegExp such as /^[A-Z]+$/', { doc: 'The pattern that a string must match.' }, isRegExp),
  charsMax: integer({ from: 1, to: 100_000_000, otherwise: '100000', doc: 'The maximum length of a string.' }),
  trim: boolean({ otherwise: 'true', doc: 'false: spaces around a string are part of it.' }),
  format: option<string>(
    "dd, mm and yyyy with one kind of separator, such as 'dd/mm/yyyy'",
    { otherwise: 'yyyy-mm-dd', doc: 'The format of a date in files, besides yyyy-mm-dd.' },
    (given) => typeof given === 'string' && dateParts(given) !== undefined,
  ),
} satisfies TableOf<Column>

/** A column may be given by its type alone. */
const column: Option<Resolved<typeof columnTable>> = {
  ...nested(columnTable, { doc: 'A column.' }),
  expand: (given) => (typeof given === 'string' ? { type: given } : given),
}

const name = (doc: string) => text({ to: 200, doc })

export const recordTypeTable = {
  key: {
    ...required(list(name('The name of a column.'), { doc: 'The column that identifies a row in its scope, or several.' })),
    expects: 'the name of a column, or an array of names',
    expand: (given: unknown) => (typeof given === 'string' ? [given] : given),
  },
  columns: required(mapOf(column, { expects: 'an object with a column per name', doc: 'The columns of a row.' })),
  schema: standardSchema('A schema for what columns cannot check. It gets the coerced row; its result is stored.'),
} satisfies TableOf<RecordTypeOptions>

const setRetry = withDefaults(
  { attempts: retryTable.attempts, initialMs: retryTable.initialMs, maxMs: retryTable.maxMs, jitter: retryTable.jitter },
  { attempts: 5, maxMs: 60_000 },
)

export const uploadLimitsTable = {
  bytesMax: integer({ from: 1, to: Number.MAX_SAFE_INTEGER, default: 1_073_741_824, doc: 'The maximum size of an upload.' }),
  rowsMax: integer({ from: 1, to: Number.MAX_SAFE_INTEGER, default: 2_000_000, doc: 'The maximum number of rows of an upload.' }),
} satisfies TableOf<NonNullable<RecordSetOptions['limits']>>

const kept = { from: 1, to: 36_500 * 86_400_000 }

export const keepTable = {
  validated: duration({ ...kept, default: '7d', doc: 'How long validated ones are kept.' }),
  uploading: duration({ ...kept, default: '1h', doc: 'How long an upload is kept after its last batch.' }),
  ended: duration({ ...kept, default: '1d', doc: 'How long all others are kept.' }),
} satisfies TableOf<NonNullable<RecordSetOptions['keep']>>

export const recordSetTuningTable = {
  chunkRows: integer({ from: 1, to: 100_000, default: 5000, doc: 'The number of changes applied in one transaction.' }),
  // A row is one string here and in PostgreSQL.
  rowCharsMax: integer({ from: 1, to: 100_000_000, default: 1_000_000, doc: 'The maximum number of characters of a row.' }),
  errorsMax: integer({ from: 1, to: Number.MAX_SAFE_INTEGER, default: 1000, doc: 'The maximum number of row errors stored.' }),
} satisfies TableOf<NonNullable<RecordSetOptions['tuning']>>

export const recordSetTable = {
  scope: required(list(name('A name.'), { doc: "The names that make a scope, such as ['organisation', 'registration']." })),
  attributes: list(name('A name.'), { doc: 'The names of attributes of a scope. Each is set once.' }),
  types: required(
    mapOf(nested(recordTypeTable, { doc: 'A type.' }), {
      expects: 'an object with a type of row per name',
      doc: 'The types of rows.',
    }),
  ),
  typeColumn: text({ to: 200, default: 'type', doc: 'The column that names the type of a row, if there are several types.' }),
  missing: oneOf(['reject', 'keep', 'tombstone'], {
    default: 'keep',
    doc: 'What happens to records that a submission leaves out.',
  }),
  unknownColumns: oneOf(['reject', 'ignore', 'keep'], {
    default: 'reject',
    doc: 'What happens to columns that are not declared.',
  }),
  schemaVersion: integer({ from: 1, to: 2_147_483_647, default: 1, doc: 'Raise it when the columns change.' }),
  classify: callback<NonNullable<RecordSetOptions['classify']>>({ doc: "A word that is stored with a row, such as 'included'." }),
  events: oneOf(['none', 'submission', 'record'], {
    default: 'submission',
    doc: "'submission': one event per commit. 'record': also one per changed record.",
  }),
  retry: nested(setRetry, { doc: 'The retry policy of applying a submission.' }),
  formats: {
    ...list(
      option<FileFormat>(
        "a format such as xlsx() of 'pawl/records/xlsx'",
        { doc: 'A format.' },
        (given) => (given as Partial<FileFormat> | null)?.name === 'xlsx' && typeof (given as FileFormat).read === 'function',
      ),
      { doc: 'Formats besides CSV, NDJSON and JSON.' },
    ),
    expects: "an array of formats such as xlsx() of 'pawl/records/xlsx'",
  },
  limits: nested(uploadLimitsTable, { doc: 'The limits of an upload.' }),
  keep: nested(keepTable, { doc: 'How long submissions that were not submitted are kept.' }),
  tuning: tuning(recordSetTuningTable),
} satisfies TableOf<RecordSetOptions>

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
  format: required(
    oneOf(['csv', 'ndjson', 'json', 'xlsx'], {
      doc: "The format of the file. 'xlsx' needs formats: [xlsx()] of the record set.",
    }),
  ),
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
  tx: ownTx,
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
  revision: integer({ from: 0, to: Number.MAX_SAFE_INTEGER, doc: 'Append only if the scope is still at this revision.' }),
} satisfies TableOf<AppendOptions>

export const submitTable = {
  revision: integer({ from: 0, to: 2_147_483_647, doc: 'Submit only if the submission is still at this revision.' }),
  tx: ownTx,
} satisfies TableOf<SubmitOptions>

export const cancelSubmissionTable = {
  reason: reason('The reason, stored in the audit and as the error of the submission.'),
  by: text({ from: 0, to: 200, doc: 'The acting person or program.' }),
} satisfies TableOf<CancelSubmissionOptions>

export const endedTable = {
  timeout: duration({ from: 1, to: 2_147_483_647, default: '15m', doc: 'How long to wait.' }),
  signal: signal({ doc: 'Ends the wait.' }),
} satisfies TableOf<WaitOptions>

export const eraseTable = {
  reason: reason('The reason, stored with the record.'),
  by: text({ from: 0, to: 200, doc: 'The acting person or program.' }),
  tx: ownTx,
}

export const submissionsTable = {
  state: oneOf(submissionStates, { otherwise: 'any', doc: 'Only submissions in this state.' }),
  limit: integer({ from: 1, to: 500, default: 50, doc: 'The size of a page.' }),
  after: anyText('`next` of the previous page.'),
} satisfies TableOf<ListSubmissionsOptions>

export const rowKind = required(
  oneOf<RowKind>(['created', 'updated', 'unchanged', 'missing', 'invalid'], { doc: 'What the rows of the submission do.' }),
)

export const pageTable = {
  limit: integer({ from: 1, to: 10_000, default: 100, doc: 'The size of a page.' }),
  after: anyText('`next` of the previous page.'),
} satisfies TableOf<PageOptions>

/** Where a page ended that is in the order of lines. */
export const afterLine = option<string>(
  '`next` of the previous page',
  { doc: '`next` of the previous page.' },
  (given) => typeof given === 'string' && /^\d{1,15}$/.test(given),
)

function isAt(given: unknown): boolean {
  if (typeof given !== 'object' || given === null) return false
  const { number, submission, time } = given as { number?: unknown; submission?: unknown; time?: unknown }
  return typeof number === 'string' || typeof submission === 'string' || (time instanceof Date && !Number.isNaN(time.getTime()))
}

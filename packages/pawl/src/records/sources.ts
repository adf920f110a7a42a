// Which reader a format has.

import { PawlError } from '../errors.ts'
import type { UploadBytes } from './bytes.ts'
import { readCsv } from './csv.ts'
import { readJson, readNdjson } from './json-rows.ts'
import type { SourceRow } from './rows.ts'
import type { Format, UploadLimits } from './types.ts'
import { readXlsx } from './xlsx.ts'

export const formats: readonly Format[] = ['csv', 'ndjson', 'json', 'xlsx']

export function sourceRows(
  format: Format,
  bytes: UploadBytes,
  limits: UploadLimits,
  types: ReadonlySet<string>,
): AsyncIterable<readonly SourceRow[]> {
  switch (format) {
    case 'csv':
      return readCsv(bytes.text(), limits)
    case 'ndjson':
      return readNdjson(bytes.text(), limits)
    case 'json':
      return readJson(bytes.text(), limits)
    case 'xlsx':
      return readXlsx(bytes.chunks(), limits, types)
    default:
      throw new PawlError('PAWL_CONFIG', `format must be one of ${formats.join(', ')}; it is ${String(format)}.`)
  }
}

// The limits of a workbook, as a table.

import { integer, type Resolved, type TableOf, tuning } from '../../../kernel/options.ts'

export interface XlsxOptions {
  /** Of the file as it is uploaded. It is written to disk before it is read. Default 100 MiB. */
  readonly fileBytesMax?: number
  readonly tuning?: XlsxTuning
}

/** Limits that are rarely changed: they stop a workbook that was made to exhaust memory or time. */
interface XlsxTuning {
  /** Default 1000. */
  readonly entriesMax?: number
  /** Default 1 GiB. */
  readonly unpackedBytesMax?: number
  /** Unpacked bytes per packed byte of a part with more than 64 kB. Default 200. */
  readonly ratioMax?: number
  /** Default 64 MiB. */
  readonly sharedStringsBytesMax?: number
}

const to = Number.MAX_SAFE_INTEGER

export const xlsxTuningTable = {
  entriesMax: integer({ from: 1, to, default: 1000, doc: 'The maximum number of entries in its zip file.' }),
  unpackedBytesMax: integer({
    from: 1,
    to,
    default: 1_073_741_824,
    doc: 'The maximum size of its parts when unpacked, in bytes.',
  }),
  ratioMax: integer({ from: 1, to, default: 200, doc: 'The maximum compression ratio of a part above 64 kB.' }),
  sharedStringsBytesMax: integer({
    from: 1,
    to,
    default: 67_108_864,
    doc: 'The maximum memory for its shared strings, in bytes.',
  }),
} satisfies TableOf<NonNullable<XlsxOptions['tuning']>>

export const xlsxTable = {
  fileBytesMax: integer({ from: 1, to, default: 104_857_600, doc: 'The maximum size of an uploaded workbook, in bytes.' }),
  tuning: tuning(xlsxTuningTable),
} satisfies TableOf<XlsxOptions>

export type XlsxLimits = Resolved<typeof xlsxTuningTable>

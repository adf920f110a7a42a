// The limits of a workbook, as a table.

import { integer, type TableOf } from '../../../kernel/options.ts'

export interface XlsxOptions {
  /** Of the file as it is uploaded. It is written to disk before it is read. */
  readonly fileBytesMax?: number
  readonly entriesMax?: number
  readonly unpackedBytesMax?: number
  /** Unpacked bytes per packed byte of a part with more than 64 kB. */
  readonly ratioMax?: number
  readonly sharedStringsBytesMax?: number
}

export type XlsxLimits = Required<XlsxOptions>

const to = Number.MAX_SAFE_INTEGER

export const xlsxTable = {
  fileBytesMax: integer({ from: 1, to, default: 104_857_600, doc: 'The maximum size of an uploaded workbook, in bytes.' }),
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
} satisfies TableOf<XlsxOptions>

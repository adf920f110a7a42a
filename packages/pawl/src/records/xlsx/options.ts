// The limits of a workbook, as a table.

import { integer, type TableOf } from '../../kernel/options.ts'

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
  fileBytesMax: integer({ from: 1, to, default: 104_857_600, doc: 'The most bytes of an uploaded workbook.' }),
  entriesMax: integer({ from: 1, to, default: 1000, doc: 'The most entries of its zip file.' }),
  unpackedBytesMax: integer({ from: 1, to, default: 1_073_741_824, doc: 'The most bytes of its parts, unpacked.' }),
  ratioMax: integer({ from: 1, to, default: 200, doc: 'The most unpacked bytes per packed byte of a part above 64 kB.' }),
  sharedStringsBytesMax: integer({ from: 1, to, default: 67_108_864, doc: 'The most memory for its shared strings.' }),
} satisfies TableOf<XlsxOptions>

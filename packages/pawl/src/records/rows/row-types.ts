// The types of rows, as they follow from the columns that a record set declares; no logic. A set whose types are not known to the compiler takes
// any object and gives back RecordData.

import type { ColumnType, RecordData, RecordTypeOptions, RecordVersion } from '../types.ts'

/** What a cell of each type of column may be given as. */
interface Given {
  readonly text: string | number | boolean
  readonly number: number | bigint | string
  readonly integer: number | bigint | string
  readonly boolean: boolean | string | number
  readonly date: string | Date
  readonly timestamp: string | Date
  readonly json: unknown
}

/** The type of a value that is read back: numbers are strings of their decimal value. */
interface Stored {
  readonly text: string
  readonly number: string
  readonly integer: string
  readonly boolean: boolean
  readonly date: string
  readonly timestamp: string
  readonly json: unknown
}

type TypeOf<C> = C extends ColumnType ? C : C extends { readonly type: infer T extends ColumnType } ? T : ColumnType

type KeyOf<T extends RecordTypeOptions> = T['key'] extends readonly (infer Name)[] ? Name : T['key']

type RequiredOf<T extends RecordTypeOptions> = {
  [Name in keyof T['columns']]: Name extends KeyOf<T>
    ? Name
    : T['columns'][Name] extends { readonly required: true }
      ? Name
      : never
}[keyof T['columns']]

type Row<T extends RecordTypeOptions, Values, Absent> = {
  readonly [Name in RequiredOf<T>]: Values[TypeOf<T['columns'][Name]> & keyof Values]
} & {
  readonly [Name in Exclude<keyof T['columns'], RequiredOf<T>>]?: Values[TypeOf<T['columns'][Name]> & keyof Values] | Absent
}

export type RecordTypes = Readonly<Record<string, RecordTypeOptions>>
export type UnknownColumns = 'reject' | 'ignore' | 'keep'

/** Of each type what is given and what is read. */
export type RowTypes = Readonly<Record<string, { readonly given: object; readonly data: RecordData }>>

/** What a schema gives back is stored, so only the columns of what is given are known then. */
export type RowsOf<Types extends RecordTypes, Unknown extends UnknownColumns> = {
  readonly [Type in keyof Types]: string extends keyof Types[Type]['columns']
    ? { readonly given: object; readonly data: RecordData }
    : {
        readonly given: Row<Types[Type], Given, null | undefined> &
          (Unknown extends 'reject' ? unknown : Readonly<Record<string, unknown>>)
        readonly data: Types[Type] extends { readonly schema: object }
          ? RecordData
          : Row<Types[Type], Stored, undefined> & RecordData
      }
}

export type TypeName<Rows extends RowTypes> = keyof Rows & string

/** A row names its type where there are several. */
export type PutRowOf<Rows extends RowTypes> =
  | { readonly [Type in TypeName<Rows>]: { readonly type: Type; readonly data: Rows[Type]['given'] } }[TypeName<Rows>]
  | { readonly type?: undefined; readonly data: Rows[TypeName<Rows>]['given'] }

export type AppendRowOf<Given> =
  | (Given & { readonly key?: string })
  // Also of a type that the set does not have any more.
  | { readonly type?: string; readonly key: string; readonly data: null }

/** `Type` is any text here and not one of the set's types, so that a scope of known types can be given where one of any types is asked for. */
export type VersionOf<Rows extends RowTypes, Type extends string> = {
  readonly [Each in Type & TypeName<Rows>]: RecordVersion<Rows[Each]['data']> & { readonly type: Each }
}[Type & TypeName<Rows>]

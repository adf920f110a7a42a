// The shapes of events that users see.

/** What you append. */
export interface NewEvent<Data = unknown> {
  /** What happened, such as 'OrderPlaced'. 1 to 200 characters. */
  readonly type: string
  /** What it happened to, such as 'order'; Debezium makes the topic of it. 1 to 200 characters. */
  readonly aggregateType: string
  /** Which one: events of one key keep their order. 1 to 500 characters. Append while your transaction holds the key's row. */
  readonly key: string
  readonly data?: Data
  /** Readers may ask for one channel. 1 to 100 characters; 'default' unless given. */
  readonly channel?: string
  /** CloudEvents extras such as dataschema, and traceparent. Up to 64 kB. */
  readonly headers?: Readonly<Record<string, unknown>>
}

/** An event with its place in the log. */
export interface LogEvent<Data = unknown> {
  /** 1, 2, 3 ... without a hole, in the order in which events became visible. */
  readonly position: number
  /** Grows when the database was restored or failed over: positions given before may then belong to other events. */
  readonly generation: number
  readonly id: string
  readonly tenant: string
  readonly channel: string
  readonly aggregateType: string
  readonly key: string
  readonly type: string
  /** Undefined after an erasure. */
  readonly data: Data
  readonly headers: Readonly<Record<string, unknown>>
  /** When it was appended, by the database's clock. */
  readonly at: Date
  /** The transaction that wrote it: events with the same one became visible together. */
  readonly xid: string
}

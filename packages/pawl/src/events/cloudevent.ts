// An event of the log as a CloudEvent 1.0.

import type { LogEvent } from './types.ts'

export interface CloudEvent {
  readonly specversion: '1.0'
  readonly id: string
  readonly source: string
  readonly type: string
  readonly subject: string
  readonly time: string
  readonly datacontenttype: 'application/json'
  readonly data: unknown
  readonly [extension: string]: unknown
}

const reserved = new Set(['specversion', 'id', 'source', 'type', 'subject', 'time', 'datacontenttype', 'data', 'data_base64'])

/** `source` names your system, such as '/shop/orders'. Headers whose names are valid attribute names become extensions. */
export function toCloudEvent(event: LogEvent, source: string): CloudEvent {
  const extensions = Object.entries(event.headers).filter(
    ([name, value]) =>
      /^[a-z0-9]{1,20}$/.test(name) && !reserved.has(name) && ['string', 'number', 'boolean'].includes(typeof value),
  )
  return {
    ...Object.fromEntries(extensions),
    specversion: '1.0',
    id: event.id,
    source,
    type: event.type,
    subject: event.key,
    time: event.at.toISOString(),
    datacontenttype: 'application/json',
    partitionkey: event.key,
    sequence: String(event.position),
    ...(event.tenant === '' ? {} : { pawltenant: event.tenant }),
    data: event.data,
  }
}

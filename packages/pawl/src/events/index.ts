// Public names of the event log.
export type { Appended } from './append.ts'
export type { LogAudit } from './audit.ts'
export { type CloudEvent, toCloudEvent } from './cloudevent.ts'
export { EventLog, type LogLag, TenantEvents } from './event-log.ts'
export type { HoldBack } from './hold-back.ts'
export type { Ingested, OutsideEvent } from './ingest.ts'
export type { Retained } from './retention.ts'
export type { LogEvent, NewEvent } from './types.ts'

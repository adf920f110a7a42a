// What pg's clients can do that its types leave out: corking, cancelling, COPY, the state of a session.

import { connect } from 'node:net'
// Types by their names: with a default import the declarations would not compile where CommonJS has no synthetic default.
import type { ClientBase, QueryConfig as PgQueryConfig } from 'pg'
import pg from 'pg'

export type { ClientBase, PoolClient, QueryResult } from 'pg'
export type QueryConfig = PgQueryConfig & { query_timeout?: number | undefined }

/** Of this process. */
export const openClients = new Set<ClientBase>()

/** For fault injection in tests: cuts every connection of this process as a network would. */
export function resetConnections(): number {
  const open = [...openClients]
  for (const client of open) socketOf(client)?.destroy()
  return open.length
}

interface SessionSocket {
  readonly destroyed: boolean
  /** None of a Unix socket. */
  readonly remoteAddress?: string | undefined
  destroy(): void
}

export function socketOf(client: ClientBase): SessionSocket | undefined {
  return (client as unknown as { connection?: { stream?: SessionSocket } }).connection?.stream
}

/** Holds back what is written to this client until the given function is called, so that several statements leave in one packet. */
export function cork(client: ClientBase): () => void {
  const stream = (client as unknown as { connection?: { stream?: { cork?(): void; uncork?(): void } } }).connection?.stream
  stream?.cork?.()
  return () => stream?.uncork?.()
}

/** How long the wish to cancel a statement may be on its way. */
const cancelMs = 1000
const cancelCode = 80_877_102

/** What pg knows of a client that its types leave out. */
interface Session {
  readonly host: string
  readonly port: number
  readonly processID: number | null
  readonly secretKey: number | null
  readonly _activeQuery: unknown
  readonly _sentQueryQueue: readonly unknown[]
  readonly _queryQueue: readonly unknown[]
}

/** Undefined of a driver that does not tell, null before the first answer. */
export function transactionStatus(client: ClientBase): string | null | undefined {
  return (client as unknown as { getTransactionStatus?(): string | null }).getTransactionStatus?.()
}

/** Whether the server says that this session is in no transaction, as of the last answer. */
export function isIdle(client: ClientBase): boolean {
  return transactionStatus(client) === 'I'
}

export function sessionIdOf(client: ClientBase): number | null {
  return (client as unknown as Session).processID
}

/** Whether the server has still to answer something. */
export function isBusy(client: ClientBase): boolean {
  const { _activeQuery: active, _sentQueryQueue: sent, _queryQueue: queued } = client as unknown as Session
  return active != null || sent.length > 0 || queued.length > 0
}

/** Cuts a client's connection: a statement that does not end is not waited for. */
export function cut(client: ClientBase): void {
  const session = client as unknown as Session
  const socket = socketOf(client)
  // A server that waits for a lock does not see that its client is gone. Asked before the cut: a pooler forgets who is gone.
  if (isBusy(client) && socket !== undefined && !socket.destroyed) cancel(session, socket, () => socket.destroy())
  else socket?.destroy()
}

/** Asks the server, once and without an answer, to end what this session does. */
function cancel({ host, port, processID, secretKey }: Session, { remoteAddress }: SessionSocket, done: () => void): void {
  if (processID === null || secretKey === null) return done()
  const request = Buffer.alloc(16)
  request.writeInt32BE(16, 0)
  request.writeInt32BE(cancelCode, 4)
  request.writeInt32BE(processID, 8)
  request.writeInt32BE(secretKey, 12)
  const socket = host.startsWith('/') ? connect(`${host}/.s.PGSQL.${port}`) : connect(port, remoteAddress ?? host)
  const timer = setTimeout(() => socket.destroy(), cancelMs).unref()
  socket.on('error', () => undefined)
  socket.on('close', () => {
    clearTimeout(timer)
    done()
  })
  // The server closes the connection when it has passed the request on.
  socket.unref().resume().write(request)
}

interface CopyWire {
  readonly stream: { readonly writable: boolean; write(bytes: Buffer): unknown }
  endCopyFrom(): void
}

/** A COPY from here. It is a Query of pg's own, which a pipelined client accepts; await it before anything else is sent. */
class CopyIn extends pg.Query {
  readonly #data: Buffer

  constructor(text: string, data: Buffer, callback: (error: Error | null | undefined, result: pg.QueryResult) => void) {
    super(text, undefined, callback as never)
    this.#data = data
  }

  /** One CopyData message with the bytes as they are: what pg itself would send is a copy of them. */
  handleCopyInResponse(wire: CopyWire): void {
    if (!wire.stream.writable) return
    const header = Buffer.from('d\0\0\0\0')
    header.writeUInt32BE(this.#data.length + 4, 1)
    wire.stream.write(header)
    wire.stream.write(this.#data)
    wire.endCopyFrom()
  }
}

/** Runs `copy ... from stdin` with these bytes, and gives how many rows it took. */
export function copyIn(client: ClientBase, text: string, data: Buffer): Promise<number> {
  return new Promise((resolve, reject) => {
    client.query(new CopyIn(text, data, (error, result) => (error ? reject(error) : resolve(result.rowCount ?? 0))))
  })
}

const brokenBy = new WeakMap<object, unknown>()

export function noteBreak(client: object, error: unknown): void {
  if (!brokenBy.has(client)) brokenBy.set(client, error)
}

/** An error of a pooled client, with what the server said when it ended the session between two statements. */
export function withReason(client: ClientBase, error: unknown): unknown {
  const reason = brokenBy.get(client)
  if (reason !== undefined && reason !== error && error instanceof Error) error.cause ??= reason
  return error
}

// What a process under test asks of its supervisor: faults that it cannot do to itself. One line of JSON each way on a loopback socket,
// because the keeper's thread has no other channel.

import { connect, createServer, type Server, type Socket } from 'node:net'
import { createInterface } from 'node:readline'

export interface Request {
  readonly slot: string
  readonly pid: number
  readonly what: 'pause' | 'reset' | 'terminate' | 'restart' | 'commit-unknown' | 'clock' | 'drain'
  readonly purpose?: string
  readonly ms?: number
}

export class ControlServer {
  readonly #server: Server
  readonly #sockets = new Set<Socket>()

  private constructor(onRequest: (request: Request) => Promise<void>) {
    this.#server = createServer((socket) => {
      this.#sockets.add(socket)
      socket.on('error', () => undefined)
      socket.on('close', () => this.#sockets.delete(socket))
      readLines(socket, (line) => {
        const { id, ...request } = JSON.parse(line) as Request & { id: number }
        void onRequest(request).then(() => socket.writable && socket.write(`${id}\n`))
      })
    })
  }

  static async open(onRequest: (request: Request) => Promise<void>): Promise<ControlServer> {
    const control = new ControlServer(onRequest)
    await new Promise<void>((resolve) => control.#server.listen(0, '127.0.0.1', resolve))
    return control
  }

  get port(): number {
    return (this.#server.address() as { port: number }).port
  }

  /** No more faults: every process goes on without them. */
  heal(): void {
    for (const socket of this.#sockets) socket.write('heal\n')
  }

  async close(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy()
    await new Promise<void>((resolve) => this.#server.close(() => resolve()))
  }
}

export class ControlClient {
  readonly #socket: Socket
  readonly #waiting = new Map<number, () => void>()
  #lastId = 0
  isHealed = false

  constructor(port: number, onClose: () => void = () => undefined) {
    this.#socket = connect(port, '127.0.0.1')
    this.#socket.unref()
    this.#socket.on('close', onClose)
    this.#socket.on('error', () => undefined)
    readLines(this.#socket, (line) => {
      if (line === 'heal') this.isHealed = true
      else this.#waiting.get(Number(line))?.()
    })
  }

  /** Resolves when the supervisor has done it. */
  ask(request: Request): Promise<void> {
    const id = ++this.#lastId
    // When all its connections are cut, nothing else may keep a process alive until the answer comes.
    this.#socket.ref()
    return new Promise((resolve) => {
      this.#waiting.set(id, () => {
        this.#waiting.delete(id)
        if (this.#waiting.size === 0) this.#socket.unref()
        resolve()
      })
      this.#socket.write(`${JSON.stringify({ id, ...request })}\n`)
    })
  }
}

/** The interface passes its socket's errors on as its own; a killed process resets its socket. */
function readLines(socket: Socket, onLine: (line: string) => void): void {
  createInterface({ input: socket })
    .on('line', onLine)
    .on('error', () => undefined)
}

// A TCP proxy in front of PostgreSQL that can lose the answer to a commit. It reads the application name from the start of each
// connection, so that a fault can be aimed at the connection of one purpose ('w1.1 settle').

import { connect, createServer, type Server, type Socket } from 'node:net'

interface Link {
  readonly client: Socket
  readonly server: Socket
  application: string
  /** Logged in: what the client sends from now on are statements. */
  isReady: boolean
  /** Set once the request went through whose answer is to be lost. */
  isSwallowing: boolean
  answered: Buffer
}

interface Trap {
  readonly purpose: string
  readonly end: (isSprung: boolean) => void
}

export class FaultProxy {
  readonly #server: Server
  readonly #links = new Set<Link>()
  readonly #traps: Trap[] = []
  targetPort: number

  private constructor(targetPort: number) {
    this.targetPort = targetPort
    this.#server = createServer((client) => this.#link(client))
  }

  static async open(targetPort: number): Promise<FaultProxy> {
    const proxy = new FaultProxy(targetPort)
    await new Promise<void>((resolve) => proxy.#server.listen(0, '127.0.0.1', resolve))
    return proxy
  }

  get port(): number {
    return (this.#server.address() as { port: number }).port
  }

  /** The next commit on a connection of this purpose happens, but its answer never arrives and the connection breaks. Says whether there was one. */
  loseNextCommit(purpose: string): Promise<boolean> {
    return new Promise((resolve) => this.#traps.push({ purpose, end: resolve }))
  }

  disarm(): void {
    for (const trap of this.#traps.splice(0)) trap.end(false)
  }

  /** Cuts every connection as a network would. */
  cut(): void {
    for (const link of this.#links) end(link)
  }

  async close(): Promise<void> {
    this.disarm()
    this.cut()
    await new Promise<void>((resolve) => this.#server.close(() => resolve()))
  }

  #link(client: Socket): void {
    const server = connect(this.targetPort, '127.0.0.1')
    const link: Link = { client, server, application: '', isReady: false, isSwallowing: false, answered: Buffer.alloc(0) }
    this.#links.add(link)
    client.setNoDelay(true)
    server.setNoDelay(true)
    for (const socket of [client, server]) {
      socket.on('error', () => end(link))
      socket.on('close', () => {
        end(link)
        this.#links.delete(link)
      })
    }
    client.on('data', (chunk: Buffer) => {
      this.#fromClient(link, chunk)
      server.write(chunk)
    })
    server.on('data', (chunk: Buffer) => {
      if (chunk.subarray(-6).equals(idle)) link.isReady = true
      if (link.isSwallowing) this.#swallow(link, chunk)
      else client.write(chunk)
    })
  }

  #fromClient(link: Link, chunk: Buffer): void {
    if (link.application === '') {
      link.application = /application_name\0([^\0]*)\0/.exec(chunk.toString('latin1'))?.[1] ?? ''
    }
    if (!link.isReady) return
    const index = this.#traps.findIndex((trap) => link.application.endsWith(` ${trap.purpose.replace(/ commit$/, '')}`))
    if (index < 0 || !carriesCommit(this.#traps[index]!.purpose, chunk)) return
    link.isSwallowing = true
    this.#traps.splice(index, 1)[0]!.end(true)
  }

  /** The server has done it when it is idle again outside a transaction; only then the connection breaks. */
  #swallow(link: Link, chunk: Buffer): void {
    link.answered = Buffer.concat([link.answered, chunk])
    if (link.answered.subarray(-6).equals(idle)) end(link)
  }
}

const idle = Buffer.from([0x5a, 0, 0, 0, 5, 0x49])

/**
 * Where transactions run only the COMMIT itself is meant; an engine's connection commits with every statement. A caller's pool has both, and
 * 'caller commit' means its transactions.
 */
function carriesCommit(purpose: string, chunk: Buffer): boolean {
  return purpose === 'handler' || purpose === 'own' || purpose.endsWith(' commit')
    ? /commit\0/i.test(chunk.toString('latin1'))
    : true
}

function end(link: Link): void {
  link.client.resetAndDestroy()
  link.server.destroy()
}

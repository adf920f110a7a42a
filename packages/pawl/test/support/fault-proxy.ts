// A network that fails when a test says so. It stands between a client and PostgreSQL on loopback and knows just enough of the protocol
// to tell connections apart by their application_name, and statements and their replies by their text. Plain TCP only.

import { type AddressInfo, createServer, type Server, type Socket, connect as tcpConnect } from 'node:net'

export type Cut = 'reset' | 'blackhole'
/** Of a request: the server gets it, and its answer is not read, as by a process that is paused. */
type Loss = Cut | 'unread'

export interface LostMessage {
  /** Resolves when it happened. For a lost reply: the server has answered, so what it answered is true there. */
  readonly happened: Promise<void>
  cancel(): void
}

interface Trap {
  readonly match: RegExp
  readonly what: 'reply' | 'request'
  readonly cut: Loss
  readonly of: RegExp
  /** Answers are lost until the server is outside a transaction again. */
  readonly toCommit: boolean
  readonly sprung: () => void
}

export class FaultProxy {
  /** Added to every answer of the server. */
  latencyMs = 0
  #target: URL
  readonly #links = new Set<Link>()
  readonly #traps = new Set<Trap>()
  #server: Server | undefined
  #port = 0
  #isBlackhole = false

  private constructor(target: URL) {
    this.#target = target
  }

  static async start(databaseUrl: string): Promise<FaultProxy> {
    const proxy = new FaultProxy(new URL(databaseUrl))
    await proxy.accept()
    return proxy
  }

  /** The database's URL through this proxy. */
  get url(): string {
    const url = new URL(this.#target)
    url.hostname = '127.0.0.1'
    url.port = String(this.#port)
    return url.href
  }

  /** The application names of the connections that are open now. */
  get names(): string[] {
    return [...this.#links].map((link) => link.name)
  }

  /** Cuts connections as a dying peer would: the client sees ECONNRESET. Gives how many. */
  reset(of = /./): number {
    return this.#each(of, (link) => link.cut('reset'))
  }

  /** Connections stay open and no byte passes any more, as behind a dead route. New ones get nothing either, until restore(). */
  blackhole(of?: RegExp): number {
    if (of === undefined) this.#isBlackhole = true
    return this.#each(of ?? /(?:)/, (link) => link.cut('blackhole'))
  }

  /** New connections work again. Those that fell silent stay silent, as half-open ones do. */
  restore(): void {
    this.#isBlackhole = false
  }

  /** As an address that moves with a failover: connections break, and new ones go to another server. */
  redirect(databaseUrl: string): void {
    this.#target = new URL(databaseUrl)
    this.reset()
  }

  /** New connections are refused. */
  async refuse(): Promise<void> {
    this.#server?.close()
    this.#server = undefined
  }

  /** New connections are accepted, at the same port as before. */
  async accept(): Promise<void> {
    if (this.#server !== undefined) return
    // Half-open is allowed, because a dead route answers a FIN with nothing either.
    const server = createServer({ allowHalfOpen: true }, (socket) => this.#open(socket))
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject)
      server.listen(this.#port, '127.0.0.1', resolve)
    })
    this.#port = (server.address() as AddressInfo).port
    this.#server = server
  }

  /** The server gets the next statement that matches and answers it; the answer, and the connection, are lost. */
  loseReply(match: RegExp, options: { cut?: Loss; of?: RegExp; toCommit?: boolean } = {}): LostMessage {
    return this.#trap('reply', match, options)
  }

  /** The next statement that matches is lost on its way, and the connection with it: the server never sees it. */
  loseRequest(match: RegExp, options: { cut?: Loss; of?: RegExp } = {}): LostMessage {
    return this.#trap('request', match, options)
  }

  async stop(): Promise<void> {
    await this.refuse()
    for (const link of this.#links) link.destroy()
  }

  #trap(what: Trap['what'], match: RegExp, options: { cut?: Loss; of?: RegExp; toCommit?: boolean }): LostMessage {
    const { cut = 'reset', of = /(?:)/, toCommit = false } = options
    let sprung!: () => void
    const happened = new Promise<void>((resolve) => {
      sprung = resolve
    })
    const trap: Trap = { match, what, cut, of, toCommit, sprung }
    this.#traps.add(trap)
    return { happened, cancel: () => void this.#traps.delete(trap) }
  }

  #open(client: Socket): void {
    const upstream = tcpConnect(Number(this.#target.port || 5432), this.#target.hostname)
    const link = new Link(client, upstream, {
      latencyMs: () => this.latencyMs,
      take: (text, name) => this.#take(text, name),
      ended: () => this.#links.delete(link),
    })
    this.#links.add(link)
    if (this.#isBlackhole) link.cut('blackhole')
  }

  /** A trap springs once. */
  #take(text: string, name: string): Trap | undefined {
    const trap = [...this.#traps].find((each) => each.match.test(text) && each.of.test(name))
    if (trap !== undefined) this.#traps.delete(trap)
    return trap
  }

  #each(of: RegExp, act: (link: Link) => void): number {
    const found = [...this.#links].filter((link) => of.test(link.name))
    for (const link of found) act(link)
    return found.length
  }
}

interface LinkOptions {
  readonly latencyMs: () => number
  readonly take: (text: string, name: string) => Trap | undefined
  readonly ended: () => void
}

const sync = 'S'
const simpleQuery = 'Q'
const readyForQuery = 0x5a
const outsideTransaction = 0x49
const held = new Set(['P', 'B', 'D', 'E', 'C'])

/** One client's connection and ours to the server behind it. */
class Link {
  name = ''
  readonly #client: Socket
  readonly #upstream: Socket
  readonly #options: LinkOptions
  readonly #statements = new Map<string, string>()
  readonly #portals = new Map<string, string>()
  #fromClient: Buffer = Buffer.alloc(0)
  #fromServer: Buffer = Buffer.alloc(0)
  #hasStarted = false
  #isSilent = false
  /** Messages of a batch that its Sync has not ended yet, and their text. */
  #batch: Buffer[] = []
  #batchText = ''
  /** Every Sync and simple query is answered by one ReadyForQuery; the first of all ends the startup. */
  #batchesSent = 0
  #readySeen = 0
  #losing: { readonly batch: number; readonly trap: Trap } | undefined
  #delivered: Promise<void> = Promise.resolve()

  constructor(client: Socket, upstream: Socket, options: LinkOptions) {
    this.#client = client
    this.#upstream = upstream
    this.#options = options
    client.on('data', (bytes) => this.#onClient(bytes as Buffer))
    upstream.on('data', (bytes) => this.#onServer(bytes as Buffer))
    client.on('error', () => undefined)
    upstream.on('error', () => undefined)
    client.on('end', () => {
      if (!this.#isSilent) upstream.end()
    })
    client.on('close', () => this.#closed(upstream))
    // The server's last words travel on before the connection ends; a silent one ends for the server only.
    upstream.on('close', () => {
      void this.#delivered.then(() => {
        if (!this.#isSilent) client.end(() => this.#closed(client))
      })
    })
  }

  cut(how: Loss): void {
    this.#isSilent = true
    if (how === 'unread') this.#upstream.pause()
    if (how !== 'reset') return
    this.#client.resetAndDestroy()
    this.#upstream.destroy()
  }

  destroy(): void {
    this.#client.destroy()
    this.#upstream.destroy()
  }

  #closed(other: Socket): void {
    this.#options.ended()
    other.destroy()
  }

  #onClient(bytes: Buffer): void {
    if (this.#isSilent) return
    this.#fromClient = Buffer.concat([this.#fromClient, bytes])
    for (;;) {
      const headLength = this.#hasStarted ? 5 : 4
      if (this.#fromClient.length < headLength) return
      const length = this.#fromClient.readInt32BE(headLength - 4) + headLength - 4
      if (this.#fromClient.length < length) return
      const message = this.#fromClient.subarray(0, length)
      this.#fromClient = this.#fromClient.subarray(length)
      if (this.#hasStarted) this.#request(message)
      else this.#startup(message)
      if (this.#isSilent) return
    }
  }

  #startup(message: Buffer): void {
    this.#hasStarted = true
    const words = message.subarray(8).toString('utf8').split('\0')
    const at = words.indexOf('application_name')
    this.name = at < 0 ? '' : (words[at + 1] ?? '')
    this.#upstream.write(message)
  }

  #request(message: Buffer): void {
    const type = String.fromCharCode(message[0]!)
    this.#batch.push(message)
    this.#batchText += this.#textOf(type, message)
    if (held.has(type)) return
    const batch = this.#batch
    const text = this.#batchText.trimEnd()
    this.#batch = []
    this.#batchText = ''
    if (type === sync || type === simpleQuery) {
      this.#batchesSent++
      const trap = this.#losing === undefined ? this.#options.take(text, this.name) : undefined
      if (trap?.what === 'request') {
        if (trap.cut === 'unread') for (const part of batch) this.#upstream.write(part)
        this.cut(trap.cut)
        trap.sprung()
        return
      }
      if (trap !== undefined) this.#losing = { batch: this.#batchesSent, trap }
    }
    for (const part of batch) this.#upstream.write(part)
  }

  #textOf(type: string, message: Buffer): string {
    const words = () => message.subarray(5).toString('utf8').split('\0', 2)
    if (type === simpleQuery) return words()[0]!
    if (type === 'P') this.#statements.set(words()[0]!, words()[1] ?? '')
    // A commit is bound when its transaction begins, and sent when it is executed.
    if (type === 'B') this.#portals.set(words()[0]!, this.#statements.get(words()[1] ?? '') ?? '')
    return type === 'E' ? `${this.#portals.get(words()[0]!) ?? ''}\n` : ''
  }

  #onServer(bytes: Buffer): void {
    if (this.#isSilent) return
    this.#fromServer = Buffer.concat([this.#fromServer, bytes])
    const passed: Buffer[] = []
    const losing = this.#losing
    let isOver = false
    while (this.#fromServer.length >= 5) {
      const length = this.#fromServer.readInt32BE(1) + 1
      if (this.#fromServer.length < length) break
      const message = this.#fromServer.subarray(0, length)
      this.#fromServer = this.#fromServer.subarray(length)
      const isLost = losing !== undefined && this.#readySeen >= losing.batch
      if (!isLost) passed.push(message)
      if (message[0] !== readyForQuery) continue
      this.#readySeen++
      isOver = isLost && (!losing.trap.toCommit || message[5] === outsideTransaction)
      if (isOver) break
    }
    if (passed.length > 0) this.#deliver(Buffer.concat(passed))
    if (losing === undefined || !isOver) return
    this.#losing = undefined
    // What was answered before travels on; only then the connection goes.
    void this.#delivered.then(() => {
      this.cut(losing.trap.cut)
      losing.trap.sprung()
    })
  }

  #deliver(bytes: Buffer): void {
    const dueMs = performance.now() + this.#options.latencyMs()
    this.#delivered = this.#delivered.then(async () => {
      const waitMs = dueMs - performance.now()
      if (waitMs > 0) await new Promise((resolve) => setTimeout(resolve, waitMs))
      if (!this.#isSilent) this.#client.write(bytes)
    })
  }
}

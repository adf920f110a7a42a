export interface EmbeddedOptions {
  /** Holds the data, the password and the log. Made if missing. */
  readonly dir: string
  /** Default 15432; the next free one if it is taken; 0 for any free one. */
  readonly port?: number
  /** Default 'pawl'; created if missing. */
  readonly database?: string
  /** Further settings of the server, as given to `postgres -c`. */
  readonly settings?: Readonly<Record<string, string>>
  /** Called with one sentence for people: another port, a lock waited for, data kept elsewhere. */
  readonly onNotice?: (line: string) => void
}

export interface EmbeddedServer {
  /** postgres://pawl:<password>@127.0.0.1:<port>/<database> */
  readonly url: string
  readonly port: number
  readonly dir: string
  readonly dataDir: string
  /** Of the postmaster. */
  readonly pid: number
  /** 'adopted' when it was running already: left by a killed parent, or started by another process that shares it. */
  readonly how: 'started' | 'adopted'
  /** Ends the server for all processes that share it; resolves when its process has ended. */
  stop(mode?: 'fast' | 'immediate'): Promise<void>
}

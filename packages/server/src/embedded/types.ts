export interface EmbeddedOptions {
  /** Holds the data, the password and the log. Made if missing. */
  readonly dir: string
  /** 15432 unless told; the next free one if it is taken; 0 for any free one. */
  readonly port?: number
  /** 'pawl' unless told; created if missing. */
  readonly database?: string
  /** Further settings of the server, as given to `postgres -c`. */
  readonly settings?: Readonly<Record<string, string>>
  /** Hears, one sentence each, what a person might want to know: another port, a lock waited for, data kept elsewhere. */
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
  /** Ends the server for everybody who shares it; returns when its process has ended. */
  stop(mode?: 'fast' | 'immediate'): Promise<void>
}

// A session that marks the database as used by a `pawl dev`: the last one to leave stops the server. It reconnects when it is cut, and it keeps
// the process alive while nothing else does.

import pg from 'pg'

const markName = 'pawl dev'
const retryMs = 500

export class Mark {
  readonly #url: string
  readonly #alive = setInterval(() => undefined, 60_000)
  #client: pg.Client | undefined
  #connecting: Promise<pg.Client> | undefined
  #isRemoved = false

  private constructor(url: string) {
    this.#url = url
  }

  /** Rejects when the database cannot be reached. */
  static async set(url: string): Promise<Mark> {
    const mark = new Mark(url)
    try {
      await mark.#connect()
      return mark
    } catch (error) {
      await mark.remove()
      throw error
    }
  }

  async query<Row>(text: string, values: unknown[] = []): Promise<Row[]> {
    const client = this.#client ?? (await this.#connect())
    return (await client.query(text, values)).rows as Row[]
  }

  /** False also when the server does not answer: then no process uses it. */
  async hasOthers(): Promise<boolean> {
    const rows = await this.query(
      'select from pg_stat_activity where application_name = $1 and pid <> pg_backend_pid() and datname = current_database()',
      [markName],
    ).catch(() => [])
    return rows.length > 0
  }

  async remove(): Promise<void> {
    this.#isRemoved = true
    clearInterval(this.#alive)
    const client = this.#client ?? (await this.#connecting?.catch(() => undefined))
    this.#client = undefined
    await client?.end().catch(() => undefined)
  }

  /** One at a time: a second session of ours would count as another process. */
  #connect(): Promise<pg.Client> {
    this.#connecting ??= this.#open().finally(() => {
      this.#connecting = undefined
    })
    return this.#connecting
  }

  async #open(): Promise<pg.Client> {
    const client = new pg.Client({
      connectionString: this.#url,
      application_name: markName,
      connectionTimeoutMillis: 10_000,
      keepAlive: true,
    })
    client.on('error', () => undefined)
    client.on('end', () => {
      if (this.#client === client) this.#lost()
    })
    await client.connect()
    this.#client = client
    return client
  }

  #lost(): void {
    this.#client = undefined
    if (this.#isRemoved) return
    setTimeout(() => {
      if (this.#isRemoved || this.#client !== undefined) return
      this.#connect().catch(() => this.#lost())
    }, retryMs)
  }
}

// The keeper's side of a password function. Only the main thread can call it, and the keeper must connect also while that thread is blocked
// or the function fails: then it uses the last password.

import { setTimeout as sleep } from 'node:timers/promises'
import { PawlError } from '../../errors.ts'

interface Told {
  readonly password: string | null
  readonly reason: string
}

export class Passwords {
  readonly #send: () => void
  readonly #patienceMs: number
  #waiting: { readonly told: Promise<Told>; readonly tell: (told: Told) => void } | undefined
  #last: string | undefined

  /** `patienceMs`: well within the time that a connection may take to open. */
  constructor(send: () => void, patienceMs: number) {
    this.#send = send
    this.#patienceMs = patienceMs
  }

  /** Concurrent callers share one question. */
  async ask(): Promise<string> {
    this.#waiting ??= this.#question()
    const told = await Promise.race([this.#waiting.told, sleep(this.#patienceMs, undefined, { ref: false })])
    const password = told?.password ?? this.#last
    if (password !== undefined) return password
    throw new PawlError('PAWL_UNAVAILABLE', told?.reason ?? 'The main thread did not return the password in time.')
  }

  told(told: Told): void {
    this.#last = told.password ?? this.#last
    this.#waiting?.tell(told)
    this.#waiting = undefined
  }

  #question(): { told: Promise<Told>; tell: (told: Told) => void } {
    let tell!: (told: Told) => void
    const told = new Promise<Told>((resolve) => {
      tell = resolve
    })
    this.#send()
    return { told, tell }
  }
}

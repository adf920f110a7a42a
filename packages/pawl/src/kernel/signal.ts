// One waiter, any number of reasons to go on. A fire while nobody waits is remembered, so no wake-up is lost.

export class Wakeup {
  #isFired = false
  #resume: (() => void) | undefined

  fire(): void {
    this.#isFired = true
    this.#resume?.()
  }

  get isWaiting(): boolean {
    return this.#resume !== undefined
  }

  /** Waits until it is fired or the time is over; says whether it was fired. */
  async wait(timeoutMs?: number): Promise<boolean> {
    if (!this.#isFired) {
      let timer: NodeJS.Timeout | undefined
      await new Promise<void>((resolve) => {
        this.#resume = resolve
        if (timeoutMs !== undefined) timer = setTimeout(resolve, timeoutMs)
      })
      clearTimeout(timer)
      this.#resume = undefined
    }
    const wasFired = this.#isFired
    this.#isFired = false
    return wasFired
  }
}

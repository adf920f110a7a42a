/** What a handler returns, or throws, to run again later without using up an attempt. Made by `job.snooze('5m')`. */
export class Snooze {
  readonly delayMs: number

  constructor(delayMs: number) {
    this.delayMs = delayMs
  }
}

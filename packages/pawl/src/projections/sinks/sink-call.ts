// What a sink's function gets besides its event.

import { HandlerCall } from '../fenced.ts'
import type { SinkContext } from '../types.ts'

export class SinkCall extends HandlerCall implements SinkContext {
  readonly idempotencyKey: string
  readonly attempt: number

  constructor(idempotencyKey: string, attempt: number) {
    super()
    this.idempotencyKey = idempotencyKey
    this.attempt = attempt
  }
}

// A Pawl without a database: what is refused at the call never asks for one.

import { createPawl, type Pawl, silentLogger } from 'pawl'
import { expect, onTestFinished } from 'vitest'

/** Nothing listens there. */
export const nowhere = 'postgres://nobody@127.0.0.1:1/nothing'

export function pawlOfNowhere(): Pawl {
  const pawl = createPawl({ databaseUrl: nowhere, logger: silentLogger })
  onTestFinished(() => pawl.close())
  return pawl
}

export const configError = (message: RegExp) =>
  expect.objectContaining({ code: 'PAWL_CONFIG', message: expect.stringMatching(message) })

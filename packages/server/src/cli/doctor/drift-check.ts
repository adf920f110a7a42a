// Whether the tables, indexes and functions are what the migrations of this release make.

import { oneLine } from '../terminal.ts'
import { type Check, fault, ok } from './check.ts'
import { findDrift } from './drift.ts'

export const checkDrift: Check = async ({ client }) => {
  const drifts = await findDrift(client)
  if (drifts.length === 0) return [ok('drift', 'tables, indexes and functions match this release')]
  return drifts.map(({ what, expected, actual, fixSql }) => {
    const how = actual === null ? 'is missing' : expected === null ? 'is not part of this release' : 'differs from this release'
    return fault('drift', `${what} ${how}.`, oneLine(fixSql))
  })
}

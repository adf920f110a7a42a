// Loaded by a keeper thread that is to have a bug.

import { installProbe } from '../../src/kernel/probe.ts'

installProbe((name) => {
  if (name === 'keeper.beat.before') throw new TypeError('planted')
})

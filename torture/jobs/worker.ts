// A worker process under test: an ordinary worker, the kinds of the storm, and the faults planned for it.

import { createPawl } from 'pawl'
import { keeperTesting } from 'pawl/testing'
import { hardyPool } from '../pool.ts'
import { serve } from '../serve.ts'
import { besideProgram, underTest } from '../under-test.ts'
import { canaries } from './canaries.ts'
import { defineKinds } from './kinds.ts'

const subject = underTest(canaries)
const { options, proc, history, logger } = subject
const { dir, url, leaseMs, beatMs, concurrency } = options
keeperTesting.probeModule = besideProgram(import.meta.url, 'keeper-probe')

const pool = hardyPool({ url, name: `${proc} own`, max: concurrency })
const pawl = createPawl({ databaseUrl: url, applicationName: proc, logger, connectTimeoutMs: 5000, queryTimeoutMs: 5000 })
defineKinds(pawl, { dir, history, pool })
await serve(pawl, { name: proc, lease: leaseMs, beatMs, concurrency, pollMs: 300, bufferMs: 3000, touchMs: 100 }, subject)

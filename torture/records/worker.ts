// A worker process under test: an ordinary worker that applies submissions, and the faults planned for it.

import { createPawl } from 'pawl'
import { keeperTesting } from 'pawl/testing'
import { serve } from '../serve.ts'
import { besideProgram, underTest } from '../under-test.ts'
import { canaries } from './canaries.ts'
import { defineSets } from './sets.ts'

const subject = underTest(canaries)
const { options, proc, logger } = subject
const { url, leaseMs, beatMs, concurrency } = options
keeperTesting.probeModule = besideProgram(import.meta.url, 'keeper-probe')

const pawl = createPawl({ databaseUrl: url, applicationName: proc, logger, connectTimeoutMs: 5000, queryTimeoutMs: 5000 })
defineSets(pawl)
await serve(pawl, { name: proc, lease: leaseMs, beatMs, concurrency, pollMs: 200 }, subject)

// Loaded by the keeper's thread of a process under test.

import { keeperUnderTest } from '../under-test.ts'
import { canaries } from './canaries.ts'

keeperUnderTest(canaries)

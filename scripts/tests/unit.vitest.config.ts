// Unit tests only: no server is started, so they take seconds.

import base from '../../vitest.config.ts'

export default {
  ...base,
  test: {
    ...base.test,
    exclude: ['**/node_modules/**', '**/dist/**', '**/*.pg.test.ts', '**/*.slow.test.ts'],
    globalSetup: [],
    testTimeout: 30_000,
  },
}

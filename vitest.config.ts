import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitest/config'

const source = (path: string) => fileURLToPath(new URL(path, import.meta.url))

export default defineConfig({
  // Tests run the sources, not a build.
  resolve: {
    alias: [
      { find: /^pawl$/, replacement: source('packages/pawl/src/index.ts') },
      { find: /^pawl\/records\/xlsx$/, replacement: source('packages/pawl/src/records/xlsx/index.ts') },
      { find: /^pawl\/testing$/, replacement: source('packages/pawl/src/testing/index.ts') },
      { find: /^@pawl\/server\/embedded$/, replacement: source('packages/server/src/embedded/index.ts') },
    ],
  },
  test: {
    include: ['packages/*/src/**/*.test.ts', 'packages/*/test/**/*.test.ts', 'torture/**/*.test.ts', 'scripts/**/*.test.ts'],
    pool: 'forks',
    globalSetup: ['packages/pawl/test/support/postgres-server.ts'],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    // On two cores: tests wait for the database half of their time.
    maxWorkers: 3,
  },
})

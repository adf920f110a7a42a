import { defineConfig } from 'vitest/config'

export default defineConfig({
  resolve: { conditions: ['source'] },
  ssr: { resolve: { conditions: ['source'], externalConditions: ['source'] } },
  test: {
    include: ['packages/*/src/**/*.test.ts', 'packages/*/test/**/*.test.ts', 'torture/**/*.test.ts', 'scripts/**/*.test.ts'],
    // The lease keeper is a worker thread in TypeScript; it is loaded through tsx, which the fork's arguments pass on to it.
    pool: 'forks',
    execArgv: ['--import', 'tsx', '--conditions=source'],
    globalSetup: ['packages/pawl/test/support/postgres-server.ts'],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    maxWorkers: 2,
  },
})

import { defineConfig } from 'vitest/config'
import { entriesOf, packageDir, packageNames } from './scripts/exports.ts'

export default defineConfig({
  // Tests run the sources, not a build.
  resolve: {
    alias: packageNames.flatMap((name) =>
      entriesOf(name).map(({ specifier, path }) => ({
        find: new RegExp(`^${specifier}$`),
        replacement: `${packageDir(name)}/src/${path}.ts`,
      })),
    ),
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

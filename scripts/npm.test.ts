import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { expect, test } from 'vitest'

test('under npm run on Node 20 the install of peers accepts pg-boss', () => {
  const bench = fileURLToPath(new URL('../bench', import.meta.url))
  const code = `import { npm } from '${new URL('./npm.mjs', import.meta.url).href}'
    process.exitCode = npm(${JSON.stringify(bench)}, ['ci', '--dry-run', '--offline'], 'inherit') ? 0 : 1`
  const done = spawnSync(process.execPath, ['--input-type=module', '--eval', code], {
    env: { ...process.env, npm_config_engine_strict: 'true' },
    encoding: 'utf8',
  })
  expect(done.stderr).not.toContain('EBADENGINE')
  expect(done.status).toBe(0)
})

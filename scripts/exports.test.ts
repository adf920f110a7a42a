import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { entriesOf, packageDir, packageNames, readManifest } from './exports.ts'
import { root } from './phase.ts'

test.each(packageNames)('every subpath of %s has a build for import and for require', (name) => {
  const entries = entriesOf(name)
  expect(entries.length).toBeGreaterThan(0)
  const expected = Object.fromEntries(
    entries.map(({ specifier, path }) => [
      specifier.replace(readManifest(name).name, '.'),
      {
        '@pawl/source': `./src/${path}.ts`,
        import: { types: `./dist/${path}.d.ts`, default: `./dist/${path}.js` },
        require: { types: `./dist/${path}.d.cts`, default: `./dist/${path}.cjs` },
      },
    ]),
  )
  expect(readManifest(name).exports).toEqual({ ...expected, './package.json': './package.json' })
  for (const { path } of entries) expect(existsSync(join(packageDir(name), 'src', `${path}.ts`))).toBe(true)
})

test.each(packageNames)('%s comes with a README and the licence', (name) => {
  expect(existsSync(join(packageDir(name), 'README.md'))).toBe(true)
  expect(readFileSync(join(packageDir(name), 'LICENSE'), 'utf8')).toBe(readFileSync(join(root, 'LICENSE'), 'utf8'))
})

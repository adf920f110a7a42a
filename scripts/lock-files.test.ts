import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { root } from './phase.ts'

interface Locked {
  readonly link?: boolean
  readonly integrity?: string
  readonly resolved?: string
}

/** npm leaves the integrity out of a package that its registry does not have: pin a release that is there for every platform. */
test.each(['package-lock.json', 'bench/package-lock.json', 'scripts/pack-checks/package-lock.json'])(
  '%s has the integrity of every package of every platform',
  (file) => {
    const { packages } = JSON.parse(readFileSync(join(root, file), 'utf8')) as { packages: Record<string, Locked> }
    const installed = Object.entries(packages).filter(([path, { link }]) => path.includes('node_modules/') && !link)
    expect(installed.length).toBeGreaterThan(100)
    expect(installed.filter(([, { integrity }]) => !integrity?.startsWith('sha512-')).map(([path]) => path)).toEqual([])
    // The address of the registry is each reader's own.
    expect(installed.filter(([, { resolved }]) => resolved !== undefined).map(([path]) => path)).toEqual([])
  },
)

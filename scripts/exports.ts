// The exports of the packages, from their package.json: each subpath names its source, and everything else follows from that.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { root } from './phase.ts'
import { filesUnder } from './results.ts'

export const packageNames = ['pawl', 'server'] as const
export type PackageName = (typeof packageNames)[number]

export interface Manifest {
  readonly name: string
  readonly version: string
  readonly exports: Readonly<Record<string, string | Readonly<Record<string, unknown>>>>
  readonly bin?: Readonly<Record<string, string>>
  readonly peerDependencies?: Readonly<Record<string, string>>
  readonly files: readonly string[]
}

export interface Entry {
  /** As it is imported: pawl/testing. */
  readonly specifier: string
  /** Below src, without its extension: testing/index. */
  readonly path: string
}

export function packageDir(name: PackageName): string {
  return join(root, 'packages', name)
}

export function readManifest(name: PackageName): Manifest {
  return JSON.parse(readFileSync(join(packageDir(name), 'package.json'), 'utf8')) as Manifest
}

/** Every subpath that names a TypeScript source. */
export function entriesOf(name: PackageName): Entry[] {
  const manifest = readManifest(name)
  return Object.entries(manifest.exports).flatMap(([subpath, conditions]) => {
    const source = Object.values(conditions).find((value) => typeof value === 'string' && /^\.\/src\/.*\.ts$/.test(value))
    const path = typeof source === 'string' ? source.replace(/^\.\/src\/|\.ts$/g, '') : undefined
    return path === undefined ? [] : [{ specifier: manifest.name + subpath.slice(1), path }]
  })
}

/** The compiled files: all but tests and their support. */
export function sourcesOf(name: PackageName): string[] {
  return [...filesUnder(join(packageDir(name), 'src'))].filter(
    (file) => file.endsWith('.ts') && !file.endsWith('.test.ts') && !/[\\/]test-support[\\/]/.test(file),
  )
}

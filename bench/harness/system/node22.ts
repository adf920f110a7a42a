// pg-boss 12 needs Node 22.12. Where this process is older, it runs under the binary that the npm package node-<platform> carries:
// the package `node` itself would fetch it in an install script, and those are not run here.

import { existsSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const bench = dirname(dirname(dirname(fileURLToPath(import.meta.url))))

export function node22(): string | undefined {
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number)
  if (major > 22 || (major === 22 && minor >= 12)) return process.execPath
  const packaged = join(bench, 'node_modules', `node-${process.platform}-${process.arch}`, 'bin', 'node')
  return existsSync(packaged) ? packaged : undefined
}

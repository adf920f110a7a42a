// npm run build: JavaScript and declarations of the library and the server in their dist folders, with the SQL files beside.

import { chmodSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { compile } from './compile.ts'
import { line, report, root } from './phase.ts'

// The server is compiled against the library's declarations, as its users' code is, so the library comes first.
for (const name of ['pawl', 'server'] as const) {
  rmSync(join(root, 'packages', name, 'dist'), { recursive: true, force: true })
  const ended = await compile(name)
  report(ended)
  if (!ended.ok) process.exit(1)
}
chmodSync(join(root, 'packages', 'server', 'dist', 'cli', 'main.js'), 0o755)
line('ok', 'build', undefined, 'packages/pawl/dist, packages/server/dist')

// npm run build: what npm publishes of the library and the server, in their dist folders.

import { compile } from './compile.ts'
import { packageNames } from './exports.ts'
import { line, report } from './phase.ts'

// The server is compiled against the library's declarations, as its users' code is, so the library comes first.
for (const name of packageNames) {
  const ended = await compile(name)
  report(ended)
  if (!ended.ok) process.exit(1)
}
line('ok', 'build', undefined, packageNames.map((name) => `packages/${name}/dist`).join(', '))

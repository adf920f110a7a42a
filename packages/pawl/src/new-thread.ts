// Starts the keeper's thread from the sources. A build has another module in place of this one (scripts/inline.ts).

import { Worker as Thread, type WorkerOptions } from 'node:worker_threads'

/** The module is TypeScript, and a thread does not inherit the loader: it registers its own, unless the test has compiled it. */
export function newThread(options: WorkerOptions, compiled?: string): Thread {
  if (compiled !== undefined) return new Thread(compiled, options)
  const loader = import.meta.resolve('tsx/esm/api')
  const thread = new URL('./keeper-thread.ts', import.meta.url).href
  return new Thread(`import('${loader}').then(({ register }) => { register(); return import('${thread}') })`, {
    ...options,
    eval: true,
  })
}

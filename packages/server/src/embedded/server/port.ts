import { createServer } from 'node:net'
import { codeOf, EmbeddedError } from '../errors.ts'

/** Outside the ranges from which systems take ports for outgoing connections, and not where a system PostgreSQL would be. */
export const defaultPort = 15432

const tries = 200

/** The wanted port, or the first free one after it; 0 asks the system for any. It may be taken again before PostgreSQL binds it. */
export async function freePort(wanted: number): Promise<number> {
  for (let port = wanted; port < wanted + tries && port <= 65_535; port += 1) {
    const bound = await tryPort(port)
    if (bound !== undefined) return bound
  }
  throw new EmbeddedError(
    'no_free_port',
    `PostgreSQL cannot be started: 127.0.0.1:${wanted} and the ports after it are all taken or not permitted. ` +
      'Stop what listens there, or choose another port, or 0 for any free one.',
  )
}

export async function isFree(port: number): Promise<boolean> {
  return (await tryPort(port)) !== undefined
}

function tryPort(port: number): Promise<number | undefined> {
  return new Promise((resolve, reject) => {
    const server = createServer()
    server.once('error', (error) => {
      if (codeOf(error) === 'EADDRINUSE' || codeOf(error) === 'EACCES') resolve(undefined)
      else reject(error)
    })
    server.listen({ port, host: '127.0.0.1', exclusive: true }, () => {
      const address = server.address()
      const bound = typeof address === 'object' && address !== null ? address.port : port
      server.close(() => resolve(bound))
    })
  })
}

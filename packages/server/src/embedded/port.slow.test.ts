import { once } from 'node:events'
import { type AddressInfo, createServer, type Server } from 'node:net'
import { afterAll, describe, expect, onTestFinished, test, vi } from 'vitest'
import { freePort } from './server/port.ts'
import { query, Scratch } from './test-support/scratch.ts'

vi.mock('./server/port.ts', { spy: true })

const scratch = new Scratch()
afterAll(() => scratch.clear())

describe('the port', () => {
  test('a taken port is replaced by the next free one, and named', async () => {
    const dir = await scratch.cluster()
    const taken = portOf(await listen())
    const { server, notices } = await scratch.start({ dir, port: taken })
    expect(server.port).toBeGreaterThan(taken)
    expect(notices).toEqual([`Port ${taken} is taken; PostgreSQL uses ${server.port} instead.`])
    await server.stop()
  })

  test('moves on when a program takes it between probe and bind', async () => {
    const dir = await scratch.cluster()
    const taken = portOf(await listen())
    vi.mocked(freePort).mockResolvedValueOnce(taken)
    const { server, notices } = await scratch.start({ dir, port: taken })
    expect(server.port).toBeGreaterThan(taken)
    expect(notices).toEqual([`Port ${taken} is taken; PostgreSQL uses ${server.port} instead.`])
    await server.stop()
  })

  test('a stranger that takes it between probe and bind gets no data', async () => {
    const dir = await scratch.cluster()
    const stranger = await listen()
    let heard = 0
    stranger.on('connection', (socket) => {
      heard += 1
      socket.destroy()
    })
    vi.mocked(freePort).mockResolvedValueOnce(portOf(stranger))
    const { server } = await scratch.start({ dir, port: portOf(stranger) })
    expect(heard).toBe(0)
    await server.stop()
  })

  test('two servers that want the same port both start', async () => {
    const dirs = await Promise.all([scratch.cluster(), scratch.cluster()])
    const wanted = await freePort(0)
    const servers = await Promise.all(dirs.map(async (dir) => (await scratch.start({ dir, port: wanted })).server))
    expect(new Set(servers.map(({ port }) => port)).size).toBe(2)
    for (const { url, dataDir } of servers) expect(await query(url, 'show data_directory')).toEqual([{ data_directory: dataDir }])
    await Promise.all(servers.map((server) => server.stop()))
  })
})

/** Below the ports of outgoing connections: one of those could take the next port between probe and bind. */
async function listen(): Promise<Server> {
  for (;;) {
    const server = createServer().listen(20_000 + Math.floor(Math.random() * 10_000), '127.0.0.1')
    const isListening = await once(server, 'listening').then(
      () => true,
      () => false,
    )
    if (!isListening) continue
    onTestFinished(() => void server.close())
    return server
  }
}

function portOf(server: Server): number {
  return (server.address() as AddressInfo).port
}

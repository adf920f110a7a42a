/**
 * A process of its own that starts a server, for tests that kill, crowd or demote it. Arguments: the options as JSON, and what to do
 * then: 'stay' until stdin says "stop" or closes, or 'leave' at once without stopping. Speaks one JSON object a line on stdout.
 */
import { EmbeddedError, type EmbeddedServer, startEmbedded } from '../index.ts'

const [, , options = '{}', afterwards = 'stay'] = process.argv
const say = (event: object): boolean => process.stdout.write(`${JSON.stringify(event)}\n`)

try {
  const server = await startEmbedded({ ...JSON.parse(options), onNotice: (line) => say({ event: 'notice', line }) })
  const { url, port, dataDir, pid, how } = server
  say({ event: 'running', url, port, dataDir, pid, how })
  if (afterwards === 'stay') obey(server)
} catch (error) {
  say({ event: 'failed', code: error instanceof EmbeddedError ? error.code : 'unexpected', message: String(error) })
  process.exitCode = 1
}

function obey(server: EmbeddedServer): void {
  process.stdin.setEncoding('utf8').once('data', (word) => {
    if (String(word).trim() !== 'stop') return
    void server.stop().then(() => {
      say({ event: 'stopped' })
      process.stdin.destroy()
    })
  })
}

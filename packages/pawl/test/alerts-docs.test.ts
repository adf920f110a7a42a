import { readdirSync, readFileSync } from 'node:fs'
import { expect, test } from 'vitest'

const page = readFileSync(new URL('../../../docs/reference/alerts.md', import.meta.url), 'utf8')
const documented = [...page.matchAll(/^## (\S+)$/gm)].map(([, code]) => code!)

test('docs/reference/alerts.md lists exactly the codes that the library raises, in order', () => {
  const text = ['../src/', '../migrations/']
    .map((folder) => new URL(folder, import.meta.url))
    .flatMap((folder) =>
      readdirSync(folder, { recursive: true, encoding: 'utf8' })
        .filter((file) => /(?<!\.test)\.(ts|sql)$/.test(file))
        .map((file) => readFileSync(new URL(file, folder), 'utf8')),
    )
    .filter((source) => /raise_alert|_alerts\(/.test(source))
    .join('\n')
  const raised = new Set(
    [
      ...text.matchAll(/'(batch\.blocked|(?:engine|job|kind|event|cursor|projection|sequencer|partition|submission)\.[a-z-]+)'/g),
    ].map(([, code]) => code!),
  )
  expect(documented).toEqual([...raised].sort())
})

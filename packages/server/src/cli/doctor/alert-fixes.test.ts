import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { alertFixes } from './work-checks.ts'

const page = readFileSync(new URL('../../../../../docs/reference/alerts.md', import.meta.url), 'utf8')

test('doctor prints a fix of its own for every alert', () => {
  const documented = [...page.matchAll(/^## (\S+)$/gm)].map(([, code]) => code!)
  expect(Object.keys(alertFixes).sort()).toEqual(documented)
  for (const fix of Object.values(alertFixes)) expect(fix('x')).not.toContain('docs/')
})

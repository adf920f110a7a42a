// What the pages about records list is what there is.

import { readdirSync, readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { fileCodes } from './formats/bytes.ts'

const read = (path: string) => readFileSync(new URL(path, import.meta.url), 'utf8')

test('the guide lists the codes of refused files', () => {
  const guide = read('../../../../docs/guides/records.md')
  const [, section] = guide.split('## Files that are refused\n')
  const codes = [...section!.split('\n## ')[0]!.matchAll(/^\| `([a-z-]+)`/gm)].map(([, code]) => code)
  expect(codes).toEqual([...fileCodes])
})

test('the README names every source file', () => {
  const [, section] = read('./README.md').split('## Files\n')
  const files = ['.', './rows/', './formats/'].flatMap((folder) => readdirSync(new URL(folder, import.meta.url)))
  const sources = files.filter((name) => /^[a-z-]+\.ts$/.test(name))
  expect(sources.filter((name) => !section!.includes(`\`${name}\``))).toEqual([])
})

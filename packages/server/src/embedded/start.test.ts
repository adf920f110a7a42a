import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, onTestFinished, test } from 'vitest'
import { startEmbedded } from './index.ts'

let dir: string
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'pawl-embedded-test-'))
})
afterEach(() => rm(dir, { recursive: true }))

describe('what cannot work is refused with a reason and advice', () => {
  test('a platform without binaries, or an install that has left them out', async () => {
    const arch = Object.getOwnPropertyDescriptor(process, 'arch')!
    onTestFinished(() => void Object.defineProperty(process, 'arch', arch))
    Object.defineProperty(process, 'arch', { ...arch, value: 'sparc' })
    const failure = startEmbedded({ dir, port: 0 })
    await expect(failure).rejects.toMatchObject({
      code: 'no_binaries',
      message: expect.stringMatching(/-sparc .*--omit=optional.*DATABASE_URL/),
    })
  })

  test('a port that is no port, and settings that are ours', async () => {
    await expect(startEmbedded({ dir, port: 70_000 })).rejects.toMatchObject({ code: 'bad_option' })
    await expect(startEmbedded({ dir, settings: { Listen_Addresses: '*' } })).rejects.toMatchObject({ code: 'bad_option' })
    await expect(startEmbedded({ dir, settings: { 'a=b -c c': '*' } })).rejects.toMatchObject({ code: 'bad_option' })
  })
})

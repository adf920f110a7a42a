import { expect, test } from 'vitest'
import { readCall, WrongCall } from './arguments.ts'

const read = (line: string) => readCall(line.split(' ').filter((word) => word !== ''))

test.each([
  ['jobs --seed 3 --seconds 10 --json', { verb: 'storm', scenario: 'jobs', seed: 3, seconds: 10, json: true }],
  ['--plan some.json', { verb: 'storm', scenario: undefined, plan: 'some.json' }],
  ['jobs --canary no-fence', { verb: 'canary', scenario: 'jobs', canary: 'no-fence' }],
  ['--canary no-fence', { verb: 'canary', scenario: undefined, canary: 'no-fence' }],
  ['--list-canaries', { verb: 'list canaries', scenario: undefined }],
  ['jobs --list-canaries', { verb: 'list canaries', scenario: 'jobs' }],
  ['matrix jobs.tx --only kill', { verb: 'matrix', scenario: undefined, subject: 'jobs.tx', only: 'kill' }],
  ['jobs matrix --hit 3 --sample 4', { verb: 'matrix', scenario: 'jobs', subject: undefined, hit: 3, sample: 4 }],
  ['directed zombie', { verb: 'directed', subject: 'zombie' }],
  ['jobs --minimise some.json --canary no-fence', { verb: 'minimise', plan: 'some.json', canary: 'no-fence' }],
])('%s', (line, expected) => {
  expect(read(line)).toMatchObject(expected)
})

test.each(['', 'jobs --seed abc', 'jobs --seconds 0', 'jobs --bogus', 'jobs nonsense', 'matrix a b', 'jobs --seed 1.5'])(
  'a wrong call is told: %s',
  (line) => {
    expect(() => read(line)).toThrow(WrongCall)
  },
)

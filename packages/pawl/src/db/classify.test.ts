import { expect, test } from 'vitest'
import { PawlError } from '../errors.ts'
import { classify, type ErrorClass, isConflict, isRetryable, sqlState } from './classify.ts'

function withCode(code: string, message = 'the server said so'): Error {
  return Object.assign(new Error(message), { code })
}

const retried: readonly ErrorClass[] = ['transient', 'connection', 'replan', 'unwritable']

const byState: readonly (readonly [code: string, ErrorClass, message?: string])[] = [
  ['40001', 'transient'],
  ['40P01', 'transient'],
  ['55P03', 'transient'],
  ['57014', 'transient'],
  ['53200', 'transient'],
  ['57P01', 'connection'],
  ['57P02', 'connection'],
  ['57P03', 'connection'],
  ['57P05', 'connection'],
  ['25P03', 'connection'],
  ['25P04', 'connection'],
  ['53300', 'connection'],
  ['40003', 'connection'],
  ...['08000', '08001', '08003', '08004', '08006', '08007', '08P01'].map((code) => [code, 'connection'] as const),
  ['26000', 'replan'],
  ['42P05', 'replan'],
  ['0A000', 'replan', 'cached plan must not change result type'],
  ['0A000', 'permanent', 'cannot use RETURNING here: this feature is not supported'],
  ['25006', 'unwritable'],
  ['53100', 'unwritable'],
  ['53400', 'unwritable'],
  ...['22001', '22003', '22012', '22023', '22P02', '22P05'].map((code) => [code, 'permanent'] as const),
  ...['23000', '23502', '23503', '23505', '23514', '23P01'].map((code) => [code, 'permanent'] as const),
  ['25P02', 'permanent'],
  ['42501', 'permanent'],
  ['42601', 'permanent'],
  ['42P01', 'permanent'],
  ['PW001', 'fenced'],
  // A code that this release has never heard of is not tried again.
  ['XX999', 'permanent'],
]

test.each(byState.map(([code, expected, message = 'the server said so']) => [code, expected, message] as const))(
  '[K5] SQLSTATE %s is %s',
  (code, expected, message) => {
    const error = withCode(code, message)
    expect(classify(error)).toBe(expected)
    expect(isRetryable(error)).toBe(retried.includes(expected))
  },
)

test.each(['ECONNREFUSED', 'ECONNRESET', 'EPIPE', 'ETIMEDOUT', 'ENOTFOUND', 'EHOSTUNREACH', 'ENETUNREACH', 'EAI_AGAIN'])(
  '[K5] the socket error %s is of the connection',
  (code) => {
    expect(classify(withCode(code))).toBe('connection')
  },
)

// Word for word what pg and pg-pool throw; none of these has a code.
test.each([
  'Connection terminated',
  'Connection terminated unexpectedly',
  'Connection terminated due to connection timeout',
  'Client has encountered a connection error and is not queryable',
  'Client was closed and is not queryable',
  'Query read timeout',
  'timeout exceeded when trying to connect',
  'timeout expired',
  'Cannot use a pool after calling end on the pool',
  'terminating connection due to administrator command',
])("[K5] the message '%s' without a code is of the connection", (message) => {
  expect(classify(new Error(message))).toBe('connection')
})

test.each([
  [new Error('my own mistake'), 'foreign'],
  [withCode('ENOENT'), 'foreign'],
  ['a text', 'foreign'],
  [undefined, 'foreign'],
  [null, 'foreign'],
  [new PawlError('PAWL_LEASE_LOST', 'lost'), 'fenced'],
  [new PawlError('PAWL_UNAVAILABLE', 'down'), 'connection'],
  [new PawlError('PAWL_ROLLED_BACK', 'rolled back'), 'transient'],
  // Whether it happened is not known, so it must never be run again blindly.
  [new PawlError('PAWL_COMMIT_UNKNOWN', 'unknown', { cause: withCode('ECONNRESET') }), 'foreign'],
  [new PawlError('PAWL_INVALID_PAYLOAD', 'invalid'), 'foreign'],
] as const)('[K5] %s is %s', (error, expected) => {
  expect(classify(error)).toBe(expected)
})

test('[K5] conflicts are the three that two writers cause, and nothing else', () => {
  expect(byState.filter(([code]) => isConflict(withCode(code))).map(([code]) => code)).toEqual(['40001', '40P01', '55P03'])
})

test('EPIPE has the form of an SQLSTATE and is none', () => {
  expect(sqlState(withCode('EPIPE'))).toBeUndefined()
  expect(sqlState(withCode('40001'))).toBe('40001')
})

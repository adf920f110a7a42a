import { createPawl, type EnqueueOptions, isPawlError } from 'pawl'
import pg from 'pg'
import { expect, test } from 'vitest'
import { configError, nowhere, pawlOfNowhere } from '../../test/support/nowhere.ts'

test('[G2] createPawl refuses what is no option or out of its range', () => {
  const pool = new pg.Pool()
  const wrong: [unknown, RegExp][] = [
    [undefined, /^createPawl: options must be an object, got undefined\.$/],
    [null, /options must be an object, got null/],
    [nowhere, /options must be an object, got a string\.$/],
    [{ databaseUrl: '' }, /databaseUrl must be a URL such as postgres:.*, got ''/],
    [{ databaseUrl: nowhere, directUrl: nowhere }, /directUrl needs pooler: 'transaction'/],
    [{}, /databaseUrl must be a URL such as postgres:.*, got undefined; or give pool, a Pool of pg\.$/],
    [{ databaseUrl: undefined }, /databaseUrl must be a URL such as postgres:.*, got undefined; or give pool/],
    [{ databaseUrl: nowhere, directUrl: 'localhost' }, /directUrl must be a URL/],
    [{ databaseUrl: nowhere, pool: 5 }, /pool must be a Pool of the pg that Pawl uses itself .*, got 5/],
    [
      { pool: { connect() {}, totalCount: 0, options: {} } },
      /pool must be a Pool of the pg that Pawl uses itself .*, got an object/,
    ],
    [
      { pool, tuning: { callerConnectionsMax: 5 } },
      /tuning.callerConnectionsMax cannot be combined with pool: set max on your pool/,
    ],
    [{ pool, password: 'x' }, /ssl and password cannot be combined with pool: set them on your pool/],
    [
      { pool: new pg.Pool({ stream: () => undefined as never }) },
      /the pool has a stream, .*, so Pawl cannot open its own connections like it: give databaseUrl too/,
    ],
    [
      { pool: new pg.Pool({ ssl: { checkServerIdentity: () => undefined } }) },
      /functions in its ssl options, .*: give databaseUrl too/,
    ],
    [
      { databaseUrl: nowhere, ssl: 'require' },
      /ssl must be true, false or an object of Node's TLS options without functions, got 'req/,
    ],
    [{ databaseUrl: nowhere, ssl: { checkServerIdentity: () => undefined } }, /ssl must be .* without functions, got an object/],
    [
      { databaseUrl: `${nowhere}?sslmode=require`, ssl: true },
      /give TLS options in the URL \(such as sslmode\) or as ssl, not both/,
    ],
    [{ databaseUrl: 'postgres://a:b@localhost/c', password: 'x' }, /give the password in the URL or as password, not both/],
    [
      { databaseUrl: 'postgres://a@localhost/c', pooler: 'transaction', directUrl: 'postgres://a:b@x/c', password: 'x' },
      /or as password, not both/,
    ],
    [
      { databaseUrl: 'postgres://a@localhost/c', password: 5 },
      /password must be a string, or a function that returns one, got 5/,
    ],
    [{ databaseUrl: nowhere, pooler: 'session' }, /pooler must be one of 'none', 'transaction', got 'session'/],
    [{ databaseUrl: nowhere, durability: 'high' }, /durability must be one of 'relaxed', 'durable', 'replicated', got 'high'/],
    [
      { databaseUrl: nowhere, logger: {} },
      /logger must be an object with the functions debug, info, warn and error, got an object/,
    ],
    [
      { databaseUrl: nowhere, tuning: { queryTimeoutMs: '5s' } },
      /tuning.queryTimeoutMs must be an integer from 10 to 3600000, got '5s'/,
    ],
    [{ databaseUrl: nowhere, applicationName: '' }, /applicationName must be a string of 1 to 50 characters/],
  ]
  for (const [options, message] of wrong) expect(() => createPawl(options as never)).toThrow(configError(message))
})

test('URL parameters unknown to pg are refused with the known ones', () => {
  const wrong: [string, RegExp][] = [
    ['sslmod=require', /^createPawl: databaseUrl has the parameter 'sslmod', which pg does not know\. It knows host, .*sslmode/],
    ['sslmode=nonsense', /^createPawl: databaseUrl has sslmode='nonsense'\. Use one of disable, .*verify-full, no-verify\.$/],
    ['query_timeout=5', /databaseUrl has the parameter 'query_timeout', which/],
    ['ssl=false', /databaseUrl has ssl='false'\. Use one of true, 1, 0, no-verify, or sslmode=disable/],
  ]
  for (const [query, message] of wrong)
    expect(() => createPawl({ databaseUrl: `${nowhere}?${query}` })).toThrow(configError(message))
  expect(() => createPawl({ databaseUrl: nowhere, pooler: 'transaction', directUrl: `${nowhere}?sslmod=x` })).toThrow(
    configError(/directUrl has the parameter 'sslmod'/),
  )
  // Hosts and other clients give these out, and pg ignores them.
  createPawl({ databaseUrl: `${nowhere}?supa=base-pooler.x&pgbouncer=true&keepalives_idle=5&statement_cache_size=0` })
  createPawl({ databaseUrl: `${nowhere}?sslmode=verify-full&channel_binding=require&application_name=shop` })
})

test('a URL parameter that pg would change in silence is refused', () => {
  const wrong: [string, string][] = [
    ...['statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout'].flatMap((name) =>
      ['5s', 'abc', '', '-1', '1.5', '2147483648'].map((value): [string, string] => [
        `${name}=${value}`,
        `has ${name}='${value}'. Give a number of milliseconds from 0 to 2147483647, such as ${name}=5000 for 5 seconds.`,
      ]),
    ),
    ['sslmode=require&sslmode=disable', "has the parameter 'sslmode' more than once. Give it once."],
    ['password=secret&password=other', "has the parameter 'password' more than once. Give it once."],
  ]
  for (const [query, message] of wrong)
    expect(() => createPawl({ databaseUrl: `${nowhere}?${query}` })).toThrow(
      expect.objectContaining({ code: 'PAWL_CONFIG', message: `createPawl: databaseUrl ${message}` }),
    )
  createPawl({ databaseUrl: `${nowhere}?statement_timeout=5000&lock_timeout=0` })
})

test('a refused URL is not shown: it may have a password', () => {
  expect(() => createPawl({ databaseUrl: 'mysql://me:secret@host/db' })).toThrow(
    configError(/databaseUrl must be a URL such as postgres:.*, got a string that begins with 'mysql:\/\/' \(not shown/),
  )
  expect(() => createPawl({ databaseUrl: 'me:secret@host/db' })).toThrow(configError(/got a string of 17 characters \(not shown/))
  expect(() => createPawl({ databaseUrl: 'postgres://me:half?secret@host/db' })).toThrow(
    configError(/has a parameter whose name is not a word\. Write a question mark in a password as %3F\.$/),
  )
  const hidden = expect.objectContaining({ message: expect.not.stringContaining('secret') })
  expect(() => createPawl({ databaseUrl: 'mysql://me:secret@host/db' })).toThrow(hidden)
  expect(() => createPawl('postgres://me:secret@host/db' as never)).toThrow(hidden)
})

test('[G2] enqueue refuses unknown options, wrong values and contradictions', async () => {
  const { jobs } = pawlOfNowhere()
  const wrong: [object | null, RegExp][] = [
    [{ priority: 'high' }, /^enqueue: priority must be an integer from -100 to 100, got 'high'\.$/],
    [
      { query: async () => ({ rows: [] }), _events: {} },
      /^enqueue has no option 'query'. The options are a client: pass it as \{ tx \}\.$/,
    ],
    [{ priorty: 5 }, /^enqueue has no option 'priorty'. Did you mean 'priority'\?$/],
    [
      { runAt: '2030-01-01' },
      /runAt must be a valid Date of the years 1 to 9999, such as new Date\('2030-01-01T00:00:00Z'\), got '2030-01-01'/,
    ],
    [{ runAt: new Date(Number.NaN) }, /runAt must be a valid Date.*, got an invalid Date/],
    [{ runAt: new Date(8.64e15) }, /runAt must be a valid Date/],
    [{ runAt: null }, /runAt must be a valid Date.*, got null/],
    [{ delay: 'soon' }, /delay must be a duration from 0ms to 3650d: .*, got 'soon'/],
    [{ delay: {} }, /delay must be a duration .*, got an object/],
    [{ delay: -1 }, /delay must be a duration .*, got -1/],
    [{ delay: '1m', runAt: new Date() }, /give delay or runAt, not both/],
    [{ maxAttempts: 0 }, /maxAttempts must be an integer from 1 to 1000000, got 0/],
    [{ queue: '' }, /queue must be a string of 1 to 100 characters .*, got ''/],
    [{ queue: 5 }, /queue must be a string of 1 to 100 characters .*, got 5/],
    [{ queue: 'pawl.records' }, /queue must not begin with 'pawl\.'/],
    [{ headers: 'x' }, /headers must be an object, got 'x'/],
    [{ headers: ['x'] }, /headers must be an object, got an array/],
    [{ wake: 'no' }, /wake must be true or false, got 'no'/],
    [{ tx: null }, /tx must be your transaction, or be left out for one of Pawl's own, got null/],
    [{ tx: 5 }, /tx must be your transaction.*, got 5/],
    [{ durability: 'none' }, /durability must be one of/],
    [null, /options must be an object, got null/],
  ]
  for (const [options, message] of wrong)
    await expect(jobs.enqueue('mail', {}, options as EnqueueOptions)).rejects.toThrow(configError(message))
  await expect(jobs.enqueueMany('mail', 'no' as never)).rejects.toThrow(
    configError(/payloads must be an array or a generator of payloads, got 'no'/),
  )
  for (const kind of [5, {}, null, undefined, '', 'a\u0000b', 'pawl.records.apply', { name: 'pawl.x' }])
    await expect(jobs.enqueue(kind as string, {}), String(kind)).rejects.toThrow(configError(/^enqueue: kind must /))
})

test('[G2] lists and changes of jobs refuse wrong options', async () => {
  const { jobs } = pawlOfNowhere()
  const states = /state must be one of 'scheduled', 'ready', 'running', 'dead', 'done', 'cancelled', got 'failed'/
  await expect(jobs.list({ state: 'failed' as never })).rejects.toThrow(configError(states))
  await expect(jobs.list({ limit: 0 })).rejects.toThrow(configError(/limit must be an integer from 1 to 500, got 0/))
  await expect(jobs.list({ kinds: 'x' } as never)).rejects.toThrow(configError(/Did you mean 'kind'/))
  await expect(jobs.cancel('1', { revision: '2' as never })).rejects.toThrow(
    configError(/revision must be an integer .*, got '2'/),
  )
  await expect(jobs.cancel('1', { reason: 'x'.repeat(2001) })).rejects.toThrow(
    configError(/reason must be a string of 0 to 2000/),
  )
  await expect(jobs.retry('1', { actor: 'x' } as never)).rejects.toThrow(configError(/retry has no option 'actor'/))
  await expect(jobs.retry('1', { by: 5 } as never)).rejects.toThrow(configError(/by must be a string of 1 to 200/))
  await expect(jobs.get(5 as never)).rejects.toThrow(configError(/id must be a string, got 5/))
  await expect(jobs.why({} as never)).rejects.toThrow(configError(/id must be a string, got an object/))
  await expect(jobs.why('x')).rejects.toMatchObject({ code: 'PAWL_NOT_FOUND' })
})

test('[G2] a worker and its stop refuse wrong options', async () => {
  const pawl = pawlOfNowhere()
  pawl.jobs.define('mail', { run: () => undefined })
  const wrong: [object, RegExp][] = [
    [{ queues: 'a' }, /^worker: queues must be an array, got 'a'\.$/],
    [{ queues: ['a', 5] }, /queues\[1\] must be a string of 1 to 100 characters .*, got 5/],
    [{ projections: ['sale'] }, /projections must be names of projections or sinks that this process defines, got 'sale'/],
    [{ queues: [] }, /^This worker has nothing to do: queues and projections leave nothing .* Leave them out/],
    [{ lease: 'long' }, /lease must be a duration from 100ms to 1h/],
    [{ tuning: { exitWhenBlocked: 'yes' } }, /tuning.exitWhenBlocked must be true or false/],
    [{ concurency: 5 }, /Did you mean 'concurrency'\?/],
    [{ pollMs: 50 }, /^worker has no option 'pollMs'. Did you mean 'tuning.pollMs'\?$/],
    [{ tuning: { beatMs: 600 }, lease: '1s' }, /tuning.beatMs \(600\) must be at most a third of the lease \(1000 ms\)/],
  ]
  for (const [options, message] of wrong) expect(() => pawl.worker(options)).toThrow(configError(message))
  const worker = pawl.worker()
  await expect(worker.stop({ grace: 'soon' })).rejects.toThrow(configError(/^stop: grace must be a duration/))
  await expect(worker.stop({ signal: {} } as never)).rejects.toThrow(configError(/^stop has no option 'signal'/))
  await worker.stop({ grace: 0 })
})

test('[G2] a tenant or an event that cannot be is refused', () => {
  const pawl = pawlOfNowhere()
  for (const tenant of [undefined, null, 5, '', 'x'.repeat(101), '\u0000'])
    expect(() => pawl.for(tenant as string)).toThrow(configError(/^for: tenant must be a string of 1 to 100 characters/))
  expect(() => pawl.on('job.completed' as never, () => undefined)).toThrow(
    configError(/^on: event must be one of 'job.started', 'job.done', .*, got 'job.completed'\.$/),
  )
  expect(() => pawl.on('job.done', 'x' as never)).toThrow(configError(/listener must be a function, got 'x'/))
})

test('every refusal is a PawlError', async () => {
  const { jobs } = pawlOfNowhere()
  const error = await jobs.enqueue('mail', {}, { priority: 101 }).catch((caught: unknown) => caught)
  expect(isPawlError(error, 'PAWL_CONFIG') && error.details).toEqual({ call: 'enqueue', option: 'priority' })
})

// Where the faults of a storm of records strike. The crash matrix (cases.ts) covers every probe with every kind that makes sense there.

import type { ProbeName } from 'pawl/testing'
import type { FaultKind, PlannedFault } from '../faults.ts'
import { stream } from '../random.ts'
import type { Aims } from '../scenario.ts'

/** Processes of users. */
export const clients = ['c1', 'c2'] as const
const slots = ['w1', 'w2', 'w3'] as const

const inChunks: readonly ProbeName[] = ['records.apply.before', 'records.apply.written', 'records.apply.chunk']
const inCommit: readonly ProbeName[] = ['records.commit.before', 'records.commit.written']
const inFailure: readonly ProbeName[] = ['records.purge.chunk', 'records.fail.written']

export const aims: Aims = {
  slots,
  probes: {
    kill: [...inChunks, ...inChunks, ...inCommit, 'records.commit.after', ...inFailure, 'jobs.run.before'],
    // Stopped with a transaction open a process keeps its job until the server notices; before one, others take it over at once.
    pause: [
      ...inChunks,
      ...inCommit,
      'records.apply.before',
      'records.apply.before',
      'records.apply.chunk',
      'records.commit.before',
    ],
    reset: [...inChunks, ...inCommit],
    terminate: [...inChunks, ...inCommit],
    restart: ['records.apply.written', 'records.commit.written'],
    'commit-unknown': ['records.apply.written', ...inCommit, 'records.fail.written'],
    'sql-40001': ['records.apply.before', 'records.apply.written', ...inCommit, 'records.fail.written'],
    clock: ['records.apply.chunk', 'records.commit.before'],
    block: ['records.apply.before', 'records.commit.before'],
    drain: ['records.apply.chunk', 'records.apply.before'],
  },
  hitsMax: (probe) => (probe.startsWith('records.apply') ? 7 : 1),
  more: (seed, seconds) => Object.fromEntries(clients.map((slot) => [slot, clientFaults(seed, slot, seconds)])),
}

const clientKinds: readonly FaultKind[] = ['kill', 'kill', 'pause', 'reset', 'commit-unknown', 'commit-unknown', 'sql-40001']
const inWrites: readonly ProbeName[] = ['records.validate.before', 'records.submit.written', 'records.append.written']
const anywhere: readonly ProbeName[] = ['records.stage.committed', 'records.validate.after', ...inWrites]

function clientFaults(seed: number, slot: string, seconds: number): PlannedFault[] {
  const random = stream(seed, slot)
  return Array.from({ length: Math.ceil(seconds / 3) }, () => {
    const kind = random.pick(clientKinds)
    // Where nothing is about to be committed, no commit can be lost and no statement can fail.
    const probe = random.pick(kind === 'commit-unknown' || kind === 'sql-40001' ? inWrites : anywhere)
    return { probe, hit: random.whole(1, 6), kind }
  })
}

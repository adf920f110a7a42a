// Named points between two effects. In production a probe is one comparison; tests and torture/ install a handler that waits, throws, or
// kills the process there. The names are the crash table of each capability's README.

export const probeNames = [
  'jobs.enqueue.sent',
  'jobs.claim.before',
  'jobs.claim.after',
  'jobs.run.before',
  'jobs.run.after',
  'jobs.settle.before',
  'jobs.settle.after',
  'jobs.tx.begun',
  'jobs.tx.handled',
  'jobs.tx.before_commit',
  'jobs.tx.after_commit',
  'jobs.fail.before',
  'jobs.fail.after',
  'jobs.release.before',
  'jobs.touch.before',
  'jobs.sleep.flagged',
  'jobs.incarnation.lost',
  'keeper.beat.before',
  'keeper.beat.after',
  'keeper.asked',
  'keeper.rescue.closed',
  'keeper.rescue.after',
  'worker.opened',
  'worker.closed',
  'events.append.sent',
  'events.sequence.before',
  'events.sequence.after',
  'events.rebase.after',
  'events.retain.before',
  'events.retain.detached',
  'projections.acquired',
  'projections.release.before',
  'projections.batch.before',
  'projections.batch.moved',
  'projections.event.handled',
  'projections.batch.handled',
  'projections.batch.committed',
  'projections.fail.before',
  'projections.park.before',
  'projections.unpark.handled',
  'projections.sink.handled',
  'projections.sink.flushed',
  'projections.state.taken',
  'projections.state.handled',
  'projections.rebuild.held',
  'projections.switch.before_commit',
  'records.restart.committed',
  'records.stage.committed',
  'records.validate.before',
  'records.validate.after',
  'records.submit.written',
  'records.append.written',
  'records.apply.before',
  'records.apply.written',
  'records.apply.chunk',
  'records.commit.before',
  'records.commit.written',
  'records.commit.after',
  'records.purge.chunk',
  'records.fail.written',
  'batches.start.inserted',
  'batches.start.items',
  'batches.start.written',
  'batches.prepared',
  'batches.boundary.written',
  'batches.feed.written',
  'batches.settled',
  'batches.watch.lost',
  'batches.end.before',
  'batches.end.after',
  'batches.end.written',
  'documents.found',
  'documents.refresh.written',
] as const

export type ProbeName = (typeof probeNames)[number]
type ProbeHandler = (name: ProbeName, subject: unknown) => Promise<void> | void

/** `probe.on` is tested before the call, so that a hot path pays nothing: `if (probe.on) await probe.hit('jobs.claim.after', rows)`. */
export const probe = {
  on: false,
  handler: undefined as ProbeHandler | undefined,
  hit(name: ProbeName, subject?: unknown): Promise<void> | void {
    return this.handler?.(name, subject)
  },
}

export function installProbe(handler: ProbeHandler | undefined): void {
  probe.handler = handler
  probe.on = handler !== undefined
}

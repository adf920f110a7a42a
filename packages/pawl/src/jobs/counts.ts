// What a worker has counted since it started.

export class Counts {
  claimed = 0
  started = 0
  done = 0
  failed = 0
  dead = 0
  timedOut = 0
  rescued = 0
  released = 0
  refused = 0
  touches = 0
  settles = 0
}

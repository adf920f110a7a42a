// The planted bugs of projections.

import { type Canary, swap } from '../canary.ts'
import type { GeneralCheckName } from '../finish.ts'
import type { CheckName } from './checks.ts'
import { answerAtOnce, believeToHold, ignoreParked, moveFirst } from './patches.ts'

// A parameter stays in use, so that its number still means something.
const anyFence = swap(/and (c\.fence = \$\d+::bigint)/, 'and ($1 or true)')
const anyPosition = swap(/and (p\.position = \$\d+::bigint)/, 'and ($1 or true)')

export const canaries: readonly Canary<CheckName | GeneralCheckName>[] = [
  {
    name: 'checkpoint-before-state',
    bug: 'The cursor moves in a transaction of its own, before what the handler writes is committed.',
    proves: 'A checkpoint that is ahead of its state is seen.',
    caughtBy: 'checkpoint and state agree',
    story: 'killed before the commit',
    inProcess: moveFirst,
  },
  {
    name: 'lock-without-fence',
    bug: 'Whoever once took the cursor moves it wherever it stands, and does not hear that its lease is over.',
    proves: 'An event that two processes applied is seen.',
    caughtBy: 'applied once, in order',
    story: 'late holder',
    statements: { move: (text) => anyPosition(anyFence(text)) },
    inProcess: believeToHold,
  },
  {
    name: 'fence-not-compared',
    bug: 'A move names the position and not the fence.',
    proves: 'A move by a process that no longer holds the cursor is seen, although nothing is applied twice.',
    caughtBy: 'moved by its holder',
    story: 'late holder of a quiet log',
    statements: { move: anyFence },
    inProcess: believeToHold,
  },
  {
    name: 'cursor-fence-kept',
    bug: 'Whoever takes a cursor over keeps its fence.',
    proves: 'Fences are seen to be new with every taking.',
    caughtBy: 'fences never repeat',
    story: 'killed before the commit',
    statements: { acquire: swap('fence = pawl.next_fence()', 'fence = greatest(c.fence, 1)') },
  },
  {
    name: 'unpark-out-of-order',
    bug: 'The events of a parked key are replayed from the last to the first.',
    proves: 'Events of one key that were applied in the wrong order are seen.',
    caughtBy: 'applied once, in order',
    story: 'parked and mended',
    statements: { 'next-unparking': swap('order by p.position', 'order by p.position desc') },
  },
  {
    name: 'parked-for-ever',
    bug: 'A key whose last event was replayed stays parked.',
    proves: 'What never comes to rest is seen.',
    caughtBy: 'all at rest',
    story: 'parked and mended',
    statements: { 'unpark-key': swap('and not exists (', 'and false and not exists (') },
  },
  {
    name: 'parked-key-goes-on',
    bug: 'A sink hands over later events of a key that is parked.',
    proves: 'An event that was handed over before one that comes first is seen.',
    caughtBy: 'handed over in order',
    story: 'parked and mended',
    inProcess: ignoreParked,
  },
  {
    name: 'seen-before-applied',
    bug: 'Read-your-writes answers at once.',
    proves: 'An answer that comes before the state is seen.',
    caughtBy: 'seen and not too early',
    story: 'nobody runs yet',
    inRig: answerAtOnce,
  },
  {
    name: 'marks-of-others-cleared',
    bug: 'A refresh takes away the marks of every entity.',
    proves: 'A copy that is out of date in the end is seen.',
    caughtBy: 'copied in the end',
    story: 'parked and mended',
    statements: { 'clear-dirty': swap(/and (d\.entity = \$\d+::text)/, 'and ($1 or true)') },
  },
  {
    name: 'rebuild-from-now',
    bug: 'A new generation begins where the live one stands.',
    proves: 'A table that lacks events is seen.',
    caughtBy: 'state is the fold',
    story: 'rebuilt and switched',
    statements: {
      'add-generation': swap('m.shard, 0', 'm.shard, (select max(c.position) from pawl.cursor_at c where c.name = $2::text)'),
    },
  },
  {
    name: 'shadow-runs-ahead',
    bug: 'A generation that is not live passes events that the live one has not applied.',
    proves: 'An answer that was never given is seen.',
    caughtBy: 'let out once',
    story: 'rolled back while the live one stands',
    statements: {
      move: swap('c.effects_after is not null', 'true'),
      'read-cursor': swap('when c.effects_after is null then', 'when false then'),
    },
  },
  {
    name: 'replay-let-out',
    bug: 'What the handlers of a rebuild add for the outside is let out.',
    proves: 'An answer that was given twice is seen.',
    caughtBy: 'let out once',
    story: 'rebuilt and switched',
    statements: {
      'add-generation': (text) =>
        swap(/(\$\d+::text,)(\s+\$\d+::bigint \* interval)/, '$1 0,$2')(swap('channel, max_lag)', 'channel, effects_after, max_lag)')(text)),
    },
  },
]

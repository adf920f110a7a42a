// The stories of documents, and the planted bugs that show in them. Without its bug each story is clean.

import crypto from 'node:crypto'
import { syncBuiltinESMExports } from 'node:module'
import { setTimeout as sleep } from 'node:timers/promises'
import { installProbe } from 'pawl/testing'
import { rewrites, swap } from '../canary.ts'
import type { Rig } from '../rig.ts'
import type { Story } from '../scenario.ts'
import type { CheckName } from './checks.ts'
import type { DocumentsTraffic, TypeName, User } from './traffic.ts'

const school = { schoolId: 1 }
const session = { name: 'Fall', ...school }
const offering = { code: 'a', ...session }
const clock = '(extract(epoch from pawl.now()) * 1000)::bigint'

export const stories: Readonly<Record<string, Story<DocumentsTraffic, CheckName>>> = {
  'separators in keys': {
    tells: 'Two persons have the same letters in their names, divided in another way.',
    async play(rig, { user }) {
      await user.post('Person', { first: 'a|b', last: 'c', mark: 'one' })
      await user.post('Person', { first: 'a', last: 'b|c', mark: 'other' })
      await rig.startProcess('w1')
    },
    shows: {
      'hash-with-separators': { caughtBy: 'one key each', inProcess: separate, inRig: separate },
    },
  },
  'clock steps back': {
    tells: 'The clock of the database steps back between two requests.',
    async play(rig, { user }) {
      await rig.startProcess('w1')
      await user.post('School', { ...school, mark: 'one' })
      await user.receipt()
      await rig.stepClock(-3000)
      await user.receipt()
      await user.post('School', { ...school, mark: 'other' })
    },
    shows: {
      'order-by-clock': rewrites('receipts go forward', {
        'next-receipt': swap("nextval('pawl.document_receipt')", clock),
        'find-documents': (text) => {
          const drawn = swap("nextval('pawl.document_receipt')", clock)(text)
          return swap(/when \S+ <= coalesce\(pg_sequence_last_value[^\n]*then/, 'when true then')(drawn)
        },
      }),
    },
  },
  'old key, new document': {
    tells: 'A session is renamed, and another takes its old name before the refresh.',
    async play(rig, { user }) {
      const { Session } = await plant(user)
      await user.put('Session', Session, { name: 'Spring', school, mark: 'renamed' })
      await user.post('Session', { name: 'Fall', school, mark: 'another' })
      await rig.startProcess('w1')
    },
    shows: {
      'reference-by-value': {
        caughtBy: 'references resolve',
        schema: [
          `create function torture.refer_by_value() returns trigger language plpgsql as $$
           begin
             update pawl.document_ref r set to_id = new.id
             from pawl.document d
             where d.id = r.from_id and r.from_id <> new.id and r.type = new.type and d.body #> r.path = new.keys -> new.type;
             return null;
           end
           $$`,
          'create trigger refer_by_value after insert on pawl.document for each row execute function torture.refer_by_value()',
        ],
      },
    },
  },
  'there and back': {
    tells: 'A session is renamed and renamed back, and its offering is refreshed by itself in between.',
    async play(rig, traffic) {
      const { user } = traffic
      const { Session, Offering } = await plant(user)
      await rig.startProcess('w1')
      await refreshed(rig, traffic)
      await user.put('Session', Session, { name: 'Spring', school, mark: 'there' })
      await refreshed(rig, traffic)
      await rig.stopProcess('w1')
      await user.put('Session', Session, { name: 'Fall', school, mark: 'back' })
      await rig.query("select pawl.refresh_documents('', array(select id from pawl.document where uuid = $1))", [Offering])
      await rig.startProcess('w2')
    },
    shows: {
      'pruned-walk': {
        caughtBy: 'converged',
        functions: {
          walk_documents: swap(
            'array(select distinct g.from_id from given g where g.in_key)',
            'array(select w.id from written w where w.is_renamed)',
          ),
        },
      },
      'rename-told-as-update': {
        caughtBy: 'events are the changes',
        functions: {
          walk_documents: swap(
            "case when w.is_renamed then 'document.key-updated' else 'document.updated' end",
            "'document.updated'::text",
          ),
        },
      },
      'marked-for-ever': {
        caughtBy: 'all at rest',
        functions: { refresh_documents: swap(/array\(select o\.id from other o except [^)]*\)/, 'p_ids') },
      },
    },
  },
  'child written around a rename': {
    tells: 'An offering is found to refer to a session, which is renamed before the offering is written.',
    async play(rig, { user }) {
      const { Session } = await plant(user)
      await rig.startProcess('w1')
      await between(
        () => user.post('Offering', { code: 'b', session, mark: 'child' }),
        () => user.put('Session', Session, { name: 'Spring', school, mark: 'renamed' }),
      )
    },
    shows: {
      'newer-children-skipped': {
        caughtBy: 'converged',
        functions: {
          walk_documents: swap('and g.was <> g.value', `and g.was <> g.value and ${isOlder('g.from_id')}`),
          refresh_documents: swap('and (g.others > 0', `and ${isOlder('g.id')} and (g.others > 0`),
        },
      },
    },
  },
  'two renames, one referrer': {
    tells: 'A section is refreshed for its period, and at the same time for its offering.',
    async play(rig, traffic) {
      const { user } = traffic
      const { Period, Offering } = await plant(user)
      await Promise.all([rig.startProcess('w1'), rig.startProcess('w2')])
      await refreshed(rig, traffic)
      await user.put('Period', Period, { period: 'slow', school, mark: 'slow' })
      await rig.until(() => isSleeping(rig), 2000)
      await user.put('Offering', Offering, { code: 'z', session, mark: 'fast' })
      await sleep(500)
    },
    shows: {
      'two-refreshers-at-once': {
        caughtBy: 'converged',
        statements: {
          'take-all-dirty': swap(/where pg_try_advisory_xact_lock\(.*\)/, ''),
          'clear-due': swap(/(limit \S+)(?=\n\),\ncleared)/, '$1 for update skip locked'),
        },
        // The one that has not seen the offering's rename sleeps.
        functions: {
          refresh_documents: swap(
            'and (g.others > 0',
            `and pg_sleep(case when g.body::text like '%slow%' and g.body::text not like '%"z"%' then 3 else 0 end) is not null
             and (g.others > 0`,
          ),
        },
      },
    },
  },
  'put during a refresh': {
    tells: 'A transaction writes a section when its refresh comes, and commits after that.',
    async play(rig, traffic) {
      const { user } = traffic
      const { Section, Offering } = await plant(user)
      await rig.startProcess('w1')
      await refreshed(rig, traffic)
      const body = { sectionId: 's', offering, periods: [], mark: 'put' }
      const put = user.write([{ verb: 'put', type: 'Section', uuid: Section, body }], 'own', 1500)
      await sleep(300)
      await user.put('Offering', Offering, { code: 'z', session, mark: 'renamed' })
      await put
    },
    shows: {
      'patch-without-revision': {
        caughtBy: 'writes hold',
        functions: {
          refresh_documents: (text) =>
            swap(
              /and d\.revision = o\.revision\s+for no key update skip locked/,
              'for no key update',
            )(swap(/and d\.id = h\.id\s+and d\.revision = h\.revision/, 'and d.id = h.id')(text)),
        },
      },
    },
  },
  'equal posts': {
    tells: 'Twenty people post the same school at once.',
    async play(rig, { user }) {
      await rig.startProcess('w1')
      const body = { ...school, mark: 'the same' }
      const receipts = await Promise.all(Array.from({ length: 20 }, () => user.receipt()))
      await Promise.all(receipts.reverse().map((receipt) => user.post('School', body, receipt)))
    },
    shows: {
      'stale-check-before-no-op': {
        caughtBy: 'stale when overtaken',
        functions: {
          judge_document: swap(
            'v_is_same_key := not exists (',
            `if p ->> 'revision' is null and v_receipt < v_doc.receipt then
               return v_answer || jsonb_build_object('outcome', 'stale');
             end if;
             v_is_same_key := not exists (`,
          ),
        },
      },
    },
  },
  'key of another': {
    tells: 'A session is to have the name of another one.',
    async play(rig, { user }) {
      const { Session } = await plant(user)
      await rig.startProcess('w1')
      await user.post('Session', { name: 'Spring', school, mark: 'another' })
      await user.put('Session', Session, { name: 'Spring', school, mark: 'renamed' })
    },
    shows: {
      'old-key-released-first': {
        caughtBy: 'one key each',
        functions: {
          write_document: swap(
            'if not pawl.claim_keys(',
            "perform pawl.retire_keys(p_tenant, v_id, p -> 'identities', (p ->> 'old_ms')::bigint);\n    if not pawl.claim_keys(",
          ),
        },
      },
    },
  },
  'written after the etag was compared': {
    tells: 'A school is written by another person after its etag was compared, and before it is written.',
    async play(rig, { user }) {
      await rig.startProcess('w1')
      const { uuid, etag } = await user.post('School', { ...school, mark: 'first' })
      await between(
        () => user.put('School', uuid!, { ...school, mark: 'matched' }, etag),
        () => user.put('School', uuid!, { ...school, mark: 'sooner' }),
      )
    },
    shows: {
      'revision-not-compared': {
        caughtBy: 'etags hold',
        functions: { judge_document: swap("elsif (p ->> 'revision')::integer <> v_doc.revision then", 'elsif false then') },
      },
    },
  },
}

/** A school, a session, an offering, a period and a section. Returns their UUIDs. */
async function plant(user: User): Promise<Record<TypeName, string>> {
  const bodies: readonly (readonly [TypeName, object])[] = [
    ['School', school],
    ['Session', { name: 'Fall', school }],
    ['Offering', { code: 'a', session }],
    ['Period', { period: 'p', school }],
    ['Section', { sectionId: 's', offering, periods: [{ is: { period: 'p', ...school } }] }],
  ]
  const uuids: Partial<Record<TypeName, string>> = {}
  for (const [type, body] of bodies) uuids[type] = (await user.post(type, { ...body, mark: type })).uuid!
  return uuids as Record<TypeName, string>
}

async function refreshed(rig: Rig, traffic: DocumentsTraffic): Promise<void> {
  await rig.until(() => rig.scenario.isAtRest(rig, traffic), 7000)
}

async function isSleeping(rig: Rig): Promise<boolean> {
  return (await rig.count("select count(*) as n from pg_stat_activity where wait_event = 'PgSleep'")) > 0
}

/** The second write runs between the two statements of the first. */
async function between(first: () => Promise<unknown>, second: () => Promise<unknown>): Promise<void> {
  let hits = 0
  installProbe(async (name) => {
    if (name === 'documents.found' && hits++ === 0) await second()
  })
  await first()
  installProbe(undefined)
}

// ---- bugs that are more than one rewrite

/** Keys are joined by a character that they may contain. */
function separate(): void {
  const { hash } = crypto
  crypto.hash = ((algorithm: string, data: string | Uint8Array, encoding: 'buffer') => {
    const isKey = typeof data === 'string' && /^\["\w+",\[\[/.test(data)
    const [type, parts] = isKey ? (JSON.parse(data) as [string, [string, unknown][]]) : ['', []]
    return hash(algorithm, isKey ? [type, ...parts.map(([, value]) => value)].join('|') : data, encoding)
  }) as typeof hash
  // The modules that import it by its name get it too.
  syncBuiltinESMExports()
}

/** Of seed 002: a child that was written after its parent counts as up to date. */
function isOlder(id: string): string {
  return `not exists (
    select from pawl.document_ref o join pawl.document c on c.id = o.from_id join pawl.document t on t.id = o.to_id
    where o.from_id = ${id} and c.changed_at > t.changed_at
  )`
}

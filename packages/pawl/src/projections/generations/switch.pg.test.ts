// What belongs to a projection's table goes with its name at a switch, or the switch is refused and says what it would lose.

import { expect, test } from 'vitest'
import { add, applied, reason, runBoth } from '../../../test/support/balances.ts'
import type { TestDatabase } from '../../../test/support/database.ts'

const belongingsSql = `
  create table person (id text primary key);
  insert into person select 'k' || n from generate_series(0, 16) n;
  create table written (nth integer generated always as identity, id text not null);
  create function note() returns trigger language plpgsql as $$ begin insert into written (id) values (new.id); return new; end $$;
  grant select on balance to pg_monitor with grant option;
  grant update (note, amount) on balance to pg_monitor;
  grant insert on balance to public;
  alter table balance set (fillfactor = 70);
  alter table balance enable row level security;
  alter table balance force row level security;
  create policy everything on balance using (true) with check (amount is not null);
  create policy readers on balance as restrictive for select to pg_monitor, pg_read_all_data using (note is null);
  create trigger noted after insert or update on balance for each row execute function note();
  create trigger quiet before delete on balance for each row execute function note();
  alter table balance disable trigger quiet;
  alter table balance add constraint of_person foreign key (id) references person (id) deferrable;
  alter table balance replica identity full`

/** Everything that must be the same of the table that readers know, whichever generation it is. */
async function belongingsOf(db: TestDatabase, table: string) {
  const [row] = await db.query<Record<string, unknown>>(
    `select array(select a::text from unnest(c.relacl) a order by 1) as acl, c.relowner::regrole::text as owner, c.reloptions, c.relrowsecurity, c.relforcerowsecurity, c.relreplident,
       array(select a.attname || a.attacl::text from pg_attribute a where a.attrelid = c.oid and a.attacl is not null order by 1) as columns,
       array(select format('%s %s %s %s %s', p.polname, p.polpermissive, p.polcmd, p.polroles::regrole[],
         pg_get_expr(p.polqual, p.polrelid) || coalesce(pg_get_expr(p.polwithcheck, p.polrelid), '')) from pg_policy p where p.polrelid = c.oid order by 1) as policies,
       array(select t.tgname || t.tgenabled::text from pg_trigger t where t.tgrelid = c.oid and not t.tgisinternal order by 1) as triggers,
       array(select f.conname || pg_get_constraintdef(f.oid) from pg_constraint f where f.conrelid = c.oid and f.contype = 'f') as keys
     from pg_class c where c.oid = $1::regclass`,
    [table],
  )
  return row!
}

test('[P11] a switch and a roll-back keep everything that belongs to tables', async () => {
  const { db, pawl } = await runBoth()
  await db.query(belongingsSql)
  const before = await belongingsOf(db, 'balance')
  expect(before).toMatchObject({ triggers: ['notedO', 'quietD'], keys: [expect.stringContaining('of_person')] })
  for (let n = 0; n < 20; n++) await add(db, n)
  await pawl.projections.rebuild('balances', { reason })
  // A generation that is not live is written by the same roles.
  expect(await belongingsOf(db, 'balance_g2')).toMatchObject({ acl: before.acl, owner: before.owner, columns: before.columns })
  await pawl.projections.switchTo('balances', { generation: 2, reason })
  expect(await belongingsOf(db, 'balance')).toEqual(before)
  // What is written on in silence fires no trigger and holds no row of another table.
  expect(await belongingsOf(db, 'balance_g1')).toMatchObject({ triggers: [], keys: [] })
  await db.query('truncate written')
  await add(db, 20)
  await applied(db, 1)
  await applied(db, 2)
  expect(await db.query('select id from written')).toEqual([{ id: 'k3' }])
  await pawl.projections.rollBack('balances', { generation: 1, reason })
  expect(await belongingsOf(db, 'balance')).toEqual(before)
  expect(await belongingsOf(db, 'balance_g2')).toMatchObject({ triggers: [], keys: [] })
})

test.each([
  ['a view', 'create view rich as select id from balance', /the view (?:public\.)?rich/],
  ['a rule', 'create rule silent as on delete to balance do instead nothing', /the rule silent/],
  [
    'a foreign key to it',
    'create table part (id text references balance (id))',
    /the foreign key part_id_fkey of (?:public\.)?part/,
  ],
  [
    'a function with a parsed body',
    'create function rich() returns bigint language sql begin atomic select count(*) from balance; end',
    /the function (?:public\.)?rich\(\)/,
  ],
  [
    'a policy of another table',
    'create policy known on total using (exists (select from balance))',
    /the policy known on table (?:public\.)?total/,
  ],
  ['a publication', 'create publication changes for table balance', /the publication changes/],
  ['a child', 'create table balance_part () inherits (balance)', /the inheritance of (?:public\.)?balance_part/],
])('[P11] a switch is refused that would lose %s, and changes nothing', async (_what, sql, message) => {
  const { db, pawl } = await runBoth()
  await add(db, 1)
  await pawl.projections.rebuild('balances', { reason })
  await applied(db, 2)
  // Added while the new generation was filled.
  await db.query(sql)
  await expect(pawl.projections.switchTo('balances', { generation: 2, reason })).rejects.toMatchObject({
    code: 'PAWL_WRONG_STATE',
    message: expect.stringMatching(message),
  })
  expect(await db.query("select live_generation from pawl.projection where name = 'balances'")).toEqual([{ live_generation: 1 }])
  expect(await db.query('select id, amount::integer from balance')).toEqual([{ id: 'k1', amount: 1 }])
})

test('[P11] a switch to rows that break a foreign key is refused', async () => {
  const { db, pawl } = await runBoth()
  await db.query('create table person (id text primary key)')
  await db.query('alter table balance add constraint of_person foreign key (id) references person (id) not valid')
  await db.query("insert into person values ('k1')")
  await add(db, 1)
  await pawl.projections.rebuild('balances', { reason })
  await applied(db, 2)
  await db.query("insert into balance_g2 values ('k2', 0)")
  await db.query('alter table balance validate constraint of_person')
  await expect(pawl.projections.switchTo('balances', { generation: 2, reason, mayDiffer: true })).rejects.toMatchObject({
    code: 'PAWL_WRONG_STATE',
    message: expect.stringMatching(/add constraint of_person FOREIGN KEY/),
  })
})

test('[P7] numbers that differ in value differ, those in scale do not', async () => {
  const { db, pawl } = await runBoth()
  await db.query('alter table balance alter column amount type numeric')
  await add(db, 1)
  await pawl.projections.rebuild('balances', { reason })
  await applied(db, 1)
  await applied(db, 2)
  await db.query("update balance set amount = 10.50 where id = 'k1'; update balance_g2 set amount = 10.5 where id = 'k1'")
  expect(await pawl.projections.compare('balances', { generation: 2 })).toMatchObject({ isEqual: true })
  await db.query("update balance_g2 set amount = 10.51 where id = 'k1'")
  expect(await pawl.projections.compare('balances', { generation: 2 })).toMatchObject({
    isEqual: false,
    tables: [{ differing: 1, sample: ['["k1"]'] }, {}],
  })
})

-- name: schema
-- What schema pawl consists of, as one JSON value: tables with columns, constraints, indexes and triggers; functions; sequences.
-- Locks: none.
-- Plan: the catalogue.
-- One row. Partitions are left out: maintenance makes and removes them. Set search_path to pg_catalog first, so that names are qualified.
with relation as (
  select c.oid, c.relname, c.relkind, c.reloptions
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pawl'
  where c.relkind in ('r', 'p')
    and not c.relispartition
),
definition as (
  select r.relname,
    jsonb_build_object(
      'partitionBy', pg_get_partkeydef(r.oid),
      'options', (
        select coalesce(jsonb_object_agg(o.option_name, o.option_value), '{}')
        from pg_options_to_table(r.reloptions) o
      ),
      'columns', (
        select coalesce(jsonb_object_agg(a.attname, jsonb_build_object(
            'type', format_type(a.atttypid, a.atttypmod),
            'collation', l.collname,
            'isNotNull', a.attnotnull,
            -- From PostgreSQL 18 on the server's own function makes the ids of events; to a reader it is the same.
            'default', replace(pg_get_expr(d.adbin, d.adrelid), 'uuidv7()', 'pawl.new_event_id()'),
            'identity', nullif(a.attidentity::text, ''))), '{}')
        from pg_attribute a
        left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
        left join pg_collation l on l.oid = a.attcollation and l.collname <> 'default'
        where a.attrelid = r.oid
          and a.attnum > 0
          and not a.attisdropped
      ),
      -- The pretty form has no redundant brackets, so that what is made from it reads the same again.
      'constraints', (
        select coalesce(jsonb_object_agg(k.conname, pg_get_constraintdef(k.oid, true)), '{}')
        from pg_constraint k
        where k.conrelid = r.oid
          -- PostgreSQL 18 lists NOT NULL here as well; the columns say it already, in every release.
          and k.contype <> 'n'
      ),
      'indexes', (
        select coalesce(jsonb_object_agg(c.relname, pg_get_indexdef(i.indexrelid) || case when i.indisvalid then '' else ' (invalid)' end), '{}')
        from pg_index i
        join pg_class c on c.oid = i.indexrelid
        where i.indrelid = r.oid
          and not exists (select from pg_constraint k where k.conindid = i.indexrelid and k.conrelid = r.oid)
      ),
      'triggers', (
        select coalesce(jsonb_object_agg(t.tgname, pg_get_triggerdef(t.oid)), '{}')
        from pg_trigger t
        where t.tgrelid = r.oid
          and not t.tgisinternal
      )
    ) as body
  from relation r
)
select jsonb_build_object(
    'tables', (select coalesce(jsonb_object_agg(d.relname, d.body), '{}') from definition d),
    'functions', (
      select coalesce(jsonb_object_agg(p.oid::regprocedure::text, rtrim(pg_get_functiondef(p.oid), E'\n')), '{}')
      from pg_proc p
      join pg_namespace n on n.oid = p.pronamespace and n.nspname = 'pawl'
      where p.prokind in ('f', 'p')
    ),
    'sequences', (
      select coalesce(jsonb_object_agg(c.relname, format('as %s increment by %s minvalue %s maxvalue %s cache %s%s', s.seqtypid::regtype, s.seqincrement,
          s.seqmin, s.seqmax, s.seqcache, case when s.seqcycle then ' cycle' else ' no cycle' end)), '{}')
      from pg_sequence s
      join pg_class c on c.oid = s.seqrelid
      join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pawl'
      -- An identity column brings its own.
      where not exists (select from pg_depend x where x.objid = c.oid and x.classid = 'pg_class'::regclass and x.deptype = 'i')
    )
  ) as schema

-- Documents: natural keys that can change, references that never break. A reference is a row by id; the values in a body are copies.

create sequence pawl.document_id;
create sequence pawl.document_receipt;

create table pawl.document_type (
  tenant text collate "C" not null default '',
  name text collate "C" not null,
  shape_hash text collate "C" not null,
  changed_at timestamptz not null default pawl.now(),
  definition jsonb not null,
  primary key (tenant, name)
);
comment on table pawl.document_type is 'How types are defined, by the process that used each last.';
comment on column pawl.document_type.shape_hash is
  'Of identity, references and superclasses: while the type has documents, these cannot change.';
comment on column pawl.document_type.definition is
  'The definition, and in supers per superclass the names: {"supers": [{"type": "EducationOrganization", "names": {"schoolId": "educationOrganizationId"}}]}.';

create table pawl.document (
  id bigint not null,
  receipt bigint not null,
  uuid uuid not null default gen_random_uuid(),
  created_at timestamptz not null default pawl.now(),
  changed_at timestamptz not null default pawl.now(),
  revision integer not null default 1,
  tenant text collate "C" not null default '',
  type text collate "C" not null,
  content bytea not null,
  keys jsonb not null,
  body jsonb not null,
  primary key (tenant, id)
) with (fillfactor = 80);
create unique index document_uuid on pawl.document (tenant, uuid);
create index document_by_type on pawl.document (tenant, type, id);
comment on table pawl.document is 'Documents. No column that a rename or a refresh changes is in an index.';
comment on column pawl.document.revision is 'Counts the writes of this document. A refresh changes body and keys, and leaves it.';
comment on column pawl.document.receipt is 'Of the write that arrived last. A write without ifMatch that arrived before it is refused.';
comment on column pawl.document.content is 'SHA-256 of the canonical body without the values of its references.';
comment on column pawl.document.keys is 'The flat keys as they were last stored, by type: its own and each superclass.';

create table pawl.document_key (
  document_id bigint not null,
  alias_until timestamptz,
  tenant text collate "C" not null default '',
  type text collate "C" not null,
  hash bytea not null,
  refs bigint[] not null default '{}',
  parts jsonb not null,
  primary key (tenant, hash),
  foreign key (tenant, document_id) references pawl.document (tenant, id) on delete cascade
);
create index document_key_document on pawl.document_key (tenant, document_id);
comment on table pawl.document_key is
  'The identities that each document answers to. A rename claims its new row before it retires the old one, so for a moment a document has two.';
comment on column pawl.document_key.refs is 'The documents whose keys are part of this one, in the order of their paths.';
comment on column pawl.document_key.parts is 'The scalars of the key that the document holds itself, by name.';
comment on column pawl.document_key.alias_until is 'An old key: reads find the document by it until then.';

create table pawl.document_ref (
  from_id bigint not null,
  to_id bigint not null,
  in_key boolean not null,
  tenant text collate "C" not null default '',
  type text collate "C" not null,
  path text[] not null,
  names jsonb,
  primary key (tenant, from_id, path),
  foreign key (tenant, from_id) references pawl.document (tenant, id) on delete cascade,
  foreign key (tenant, to_id) references pawl.document (tenant, id)
);
create index document_ref_to on pawl.document_ref (tenant, to_id, from_id);
comment on table pawl.document_ref is 'References, each by its path in the body. The foreign key is why a referenced document cannot be deleted.';
comment on column pawl.document_ref.type is 'The declared type of the target: the type of the document, or a superclass of it.';
comment on column pawl.document_ref.names is 'How fields of the target''s key are called in the key of the referring document, where they differ.';

-- Finds documents by natural key, whatever the depth, in one call. Node i has the hash p_own[i] of its type and scalars; the nodes that its key
-- refers to are p_refs[p_ends[i - 1] + 1 .. p_ends[i]], counted from 1, and come before it. Null: there is none. With p_old, old keys answer too.
create function pawl.find_documents(p_tenant text, p_own bytea[], p_refs integer[], p_ends integer[], p_old boolean default false) returns bigint[]
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off
set enable_bitmapscan = off as $$
declare
  v_ids bigint[] := array_fill(null::bigint, array[coalesce(cardinality(p_own), 0)]);
  v_hash bytea;
  v_from integer := 1;
begin
  for i in 1..coalesce(cardinality(p_own), 0) loop
    v_hash := p_own[i];
    for x in v_from..p_ends[i] loop
      v_hash := v_hash || int8send(v_ids[p_refs[x]]);
    end loop;
    v_from := p_ends[i] + 1;
    if v_hash is not null then
      v_ids[i] := (
        select k.document_id
        from pawl.document_key k
        where k.tenant = p_tenant
          and k.hash = sha256(v_hash)
          and (k.alias_until is null or (p_old and k.alias_until > pawl.now()))
      );
    end if;
  end loop;
  return v_ids;
end
$$;

-- ---- reads. Without force_generic_plan each call would be planned again, which costs more than it reads. Without statistics, an index-only scan of
-- a whole index costs as much as a probe of the right one, and a join may begin with the table: `offset 0` keeps its order.

-- Documents as readers see them, in one snapshot. A row per document, in the order of p_ids, with its references as JSON [path, id, type]; then one
-- without an id, whose links are the keys of the documents, of all that they refer to, and of what those are made of: JSON [id, type, parts, refs].
create function pawl.read_documents(p_tenant text, p_ids bigint[])
returns table (id text, uuid text, type text, revision integer, created_at text, changed_at text, body text, links text)
language plpgsql stable set search_path = pg_catalog, pg_temp set datestyle = 'ISO, MDY' set plan_cache_mode = force_generic_plan set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set enable_bitmapscan = off set enable_indexonlyscan = off as $$
begin
  return query
    with recursive reached(id) as (
      select r.to_id
      from unnest(p_ids) i(id)
      cross join lateral (
        select r.to_id
        from pawl.document_ref r
        where r.tenant = p_tenant
          and r.from_id = i.id
      ) r
      union
      select x.id
      from reached c
      cross join lateral (
        select unnest(k.refs) as id
        from pawl.document_key k
        where k.tenant = p_tenant
          and k.document_id = c.id
          and k.alias_until is null
        offset 0
      ) x
    )
    select d.id::text, d.uuid::text, d.type, d.revision, d.created_at::text, d.changed_at::text, d.body::text,
      (
        select '[' || string_agg('[' || to_json(r.path)::text || ',"' || r.to_id || '",' || to_json(r.type)::text || ']', ',') || ']'
        from pawl.document_ref r
        where r.tenant = p_tenant
          and r.from_id = d.id
      )
    from unnest(p_ids) i(id)
    cross join lateral (
      select d.id, d.uuid, d.type, d.revision, d.created_at, d.changed_at, d.body
      from pawl.document d
      where d.tenant = p_tenant
        and d.id = i.id
      offset 0
    ) d
    union all
    select null, null, null, null, null, null, null,
      '[' || string_agg('["' || k.document_id || '",' || to_json(k.type)::text || ',' || k.parts::text || ',"' || array_to_string(k.refs, ' ') || '"]', ',') || ']'
    from (select c.id from reached c union all select unnest(p_ids)) c
    cross join lateral (
      select k.document_id, k.type, k.parts, k.refs
      from pawl.document_key k
      where k.tenant = p_tenant
        and k.document_id = c.id
        and k.alias_until is null
      offset 0
    ) k;
end
$$;

-- ---- refresh

-- Writes values at paths of a body that exist.
create function pawl.patch_document(p_body jsonb, p_paths jsonb[], p_values jsonb[]) returns jsonb
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  for i in 1..cardinality(p_paths) loop
    p_body := jsonb_set(p_body, array(select jsonb_array_elements_text(p_paths[i])), p_values[i], false);
  end loop;
  return p_body;
end
$$;

create aggregate pawl.join_keys(jsonb) (sfunc = pg_catalog.jsonb_concat, stype = jsonb, initcond = '{}');

-- Those of p_ids that others refer to. Mostly none of them is: one probe of their whole range tells that.
create function pawl.referred_documents(p_tenant text, p_ids bigint[]) returns bigint[]
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_indexonlyscan = off as $$
begin
  if not exists (
    select
    from (select min(i.id) as first, max(i.id) as last from unnest(p_ids) i(id)) b
    cross join lateral (
      select
      from pawl.document_ref r
      where r.tenant = p_tenant
        and r.to_id between b.first and b.last
      limit 1
    ) r
  ) then
    return '{}';
  end if;
  return array(
    select i.id
    from unnest(p_ids) i(id)
    where exists (select from pawl.document_ref r where r.tenant = p_tenant and r.to_id = i.id)
    order by i.id
  );
end
$$;

-- Brings the next documents that refer to p_targets to the stored keys of these, after p_afters by id, by p_limit references in all, with one event for
-- each that differs. Onward: those whose keys have the key of a target in them, and that others refer to. Targets and afters: what is left to walk.
-- Rest: documents for refresh_documents, which costs twice as much: those that a rename may reach by several ways, with several of these references,
-- renamed fields, superclasses or scalars as references, or written just now. Where a row is locked, all are.
create function pawl.walk_documents(
  p_tenant text,
  p_targets bigint[],
  p_afters bigint[],
  p_limit integer,
  p_is_patient boolean default true,
  out walked integer,
  out onward bigint[],
  out targets bigint[],
  out afters bigint[],
  out rest bigint[]
)
language plpgsql set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set lock_timeout = '100ms' set enable_seqscan = off set enable_hashjoin = off
set enable_mergejoin = off set enable_bitmapscan = off set enable_indexonlyscan = off as $$
declare
  v_keyed bigint[];
  v_types text[];
  v_uuids text[];
  v_events text[];
  v_payloads jsonb[];
  v_headers jsonb[];
begin
  -- Target by target, each by id: the limit cuts off the last ones. Without offset 0 the planner may begin with the documents, in their order.
  with slot as materialized (
    select w.nth, r.from_id, r.path, r.in_key, r.names, t.keys -> r.type as value
    from unnest(p_targets, p_afters) with ordinality w(to_id, after, nth)
    cross join lateral (
      select t.keys
      from pawl.document t
      where t.tenant = p_tenant
        and t.id = w.to_id
      offset 0
    ) t
    cross join lateral (
      select r.from_id, r.path, r.type, r.in_key, r.names
      from pawl.document_ref r
      where r.tenant = p_tenant
        and r.to_id = w.to_id
        and r.from_id > w.after
      order by r.from_id
      limit p_limit
    ) r
    limit p_limit
  ),
  -- The references of the last document may be cut apart: it is left to the next call.
  reached as materialized (
    select s.nth, max(s.from_id) - 1 as last
    from slot s
    where s.nth = (select max(m.nth) from slot m having count(*) = p_limit)
    group by s.nth
  ),
  special as materialized (
    select t.name
    from pawl.document_type t
    where t.tenant = p_tenant
      and (jsonb_array_length(t.definition -> 'supers') > 0 or (t.definition -> 'hasWays')::boolean)
  ),
  given as materialized (
    select s.from_id, s.path, s.value, s.in_key, d.place, d.uuid, d.type, d.revision, d.body, d.key, d.was,
      s.slots = 1 and s.names is null and p_is_patient and jsonb_typeof(d.was) = 'object' and not d.type in (select u.name from special u) as is_plain
    from (
      select s.from_id, s.path, s.in_key, s.names, s.value, count(*) over (partition by s.from_id) as slots
      from slot s
      where not exists (select from reached r where r.nth = s.nth and r.last < s.from_id)
    ) s
    cross join lateral (
      select d.ctid as place, d.uuid, d.type, d.revision, d.body, d.keys -> d.type as key, d.body #> s.path as was
      from pawl.document d
      where d.tenant = p_tenant
        and d.id = s.from_id
      offset 0
    ) d
  ),
  other as materialized (
    select g.from_id as id, g.place, g.uuid, g.type, g.revision, g.key as old_key, case when g.in_key then g.key || g.value else g.key end as key,
      jsonb_set(g.body, g.path, g.value, false) as body
    from given g
    where g.is_plain
      and g.was <> g.value
  ),
  written as (
    update pawl.document d
    set body = o.body, keys = jsonb_build_object(o.type, o.key)
    from other o
    where d.ctid = o.place
      and d.tenant = p_tenant
      and d.id = o.id
      and d.revision = o.revision
    returning o.id, o.uuid, o.type, o.revision, o.old_key, o.key, o.old_key <> o.key as is_renamed
  )
  select (select count(*) from slot), array(select distinct g.from_id from given g where g.in_key),
    array(select p_targets[n.nth] from reached r cross join lateral generate_series(r.nth, cardinality(p_targets)) n(nth) order by n.nth),
    array(
      select case when n.nth = r.nth then r.last else p_afters[n.nth] end
      from reached r
      cross join lateral generate_series(r.nth, cardinality(p_targets)) n(nth)
      order by n.nth
    ),
    -- Also what was not written, because a write that commits just now has moved the row. If that write changed nothing, no event of it marks it.
    -- Not a NOT EXISTS, which compared each with all others: four fifths of the time for 4,000.
    array(
      select g.from_id from given g where not g.is_plain
      union
      select o.id from other o where o.id not in (select w.id from written w)
      order by 1
    ),
    e.types, e.uuids, e.events, e.payloads, e.headers
  into walked, v_keyed, targets, afters, rest, v_types, v_uuids, v_events, v_payloads, v_headers
  from (
    select array_agg(w.type) as types, array_agg(w.uuid::text) as uuids,
      array_agg(case when w.is_renamed then 'document.key-updated' else 'document.updated' end) as events,
      array_agg(pawl.cascade_payload(w.type, w.revision, w.old_key, w.key)) as payloads, array_agg(jsonb_build_object('id', w.id::text)) as headers
    from written w
  ) e;
  if v_events is not null then
    perform pawl.append_row_events(p_tenant, 'documents', v_types, v_uuids, v_events, v_payloads, v_headers);
  end if;
  onward := pawl.referred_documents(p_tenant, v_keyed);
exception
  when lock_not_available then
    select w.walked, w.onward, w.targets, w.afters, w.rest into walked, onward, targets, afters, rest
    from pawl.walk_documents(p_tenant, p_targets, p_afters, p_limit, false) w;
end
$$;

-- The key that a document has now as one of its types, whatever is stored of it. Null: a key row is missing. Called under the settings of
-- refresh_documents.
create function pawl.current_key(p_tenant text, p_id bigint, p_type text) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_key jsonb;
  v_is_made boolean;
  v_type text;
  v_ref record;
begin
  select k.parts, cardinality(k.refs) > 0 into v_key, v_is_made
  from pawl.document_key k
  where k.tenant = p_tenant and k.document_id = p_id and k.type = p_type and k.alias_until is null;
  if v_is_made then
    select d.type into v_type from pawl.document d where d.tenant = p_tenant and d.id = p_id;
    if v_type <> p_type then
      return pawl.document_keys(p_tenant, v_type, pawl.current_key(p_tenant, p_id, v_type)) -> p_type;
    end if;
    for v_ref in
      select r.names, pawl.current_key(p_tenant, r.to_id, r.type) as key
      from pawl.document_ref r where r.tenant = p_tenant and r.from_id = p_id and r.in_key
    loop
      v_key := v_key || pawl.renamed_key(v_ref.key, v_ref.names);
    end loop;
  end if;
  return v_key;
end
$$;

-- A key with the names that it has in the key of a referring document.
create function pawl.renamed_key(p_key jsonb, p_names jsonb) returns jsonb
language sql immutable parallel safe
return case
  when p_names is null then p_key
  else (select jsonb_object_agg(coalesce(p_names ->> f.key, f.key), f.value) from jsonb_each(p_key) f)
end;

-- Brings bodies and keys of documents to the current keys of all that they refer to, at once: another way by which a rename reaches them finds nothing
-- to do. One event for each that differs. Onward: those whose keys it changed, and that others refer to. Locked: those that another transaction
-- writes; they are left as they are.
create function pawl.refresh_documents(p_tenant text, p_ids bigint[], out onward bigint[], out locked bigint[])
language plpgsql set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set enable_indexonlyscan = off as $$
declare
  v_renamed bigint[];
  v_types text[];
  v_uuids text[];
  v_events text[];
  v_payloads jsonb[];
  v_headers jsonb[];
begin
  with given as materialized (
    select d.id, d.uuid, d.type, d.revision, d.keys, s.others, s.body, k.parts || s.inherited as key
    from unnest(p_ids) i(id)
    cross join lateral (
      select d.id, d.uuid, d.type, d.revision, d.keys, d.body
      from pawl.document d
      where d.tenant = p_tenant
        and d.id = i.id
      offset 0
    ) d
    cross join lateral (
      select k.parts
      from pawl.document_key k
      where k.tenant = p_tenant
        and k.document_id = d.id
        and k.type = d.type
        and k.alias_until is null
      limit 1
    ) k
    cross join lateral (
      select count(*) filter (where v.is_other) as others,
        case count(*) filter (where v.is_other)
          when 0 then d.body
          when 1 then jsonb_set(d.body, min(v.path) filter (where v.is_other), (array_agg(v.value) filter (where v.is_other))[1], false)
          else pawl.patch_document(
            d.body,
            array_agg(to_jsonb(v.path)) filter (where v.is_other),
            array_agg(v.value) filter (where v.is_other)
          )
        end as body,
        pawl.join_keys(pawl.renamed_key(v.key, v.names)) filter (where v.in_key) as inherited
      from (
        select r.path, r.in_key, r.names, t.key, x.value, x.was is distinct from x.value as is_other
        from pawl.document_ref r
        cross join lateral (
          -- Computed once each: computed for each reference, 4,000 documents of one target took six times as long.
          select (
            select jsonb_object_agg(c.name, c.key) filter (where c.key is not null)
            from (
              select f.to_id || ' ' || f.type as name, pawl.current_key(p_tenant, f.to_id, f.type) as key
              from (
                select distinct f.to_id, f.type
                from unnest(p_ids) i(id)
                cross join lateral (
                  select f.to_id, f.type
                  from pawl.document_ref f
                  where f.tenant = p_tenant
                    and f.from_id = i.id
                  offset 0
                ) f
              ) f
            ) c
          ) -> (r.to_id || ' ' || r.type) as key
          offset 0
        ) t
        cross join lateral (
          select b.was, case when jsonb_typeof(b.was) = 'object' then t.key else (select f.value from jsonb_each(t.key) f limit 1) end as value
          from (select d.body #> r.path as was offset 0) b
          offset 0
        ) x
        where r.tenant = p_tenant
          and r.from_id = d.id
      ) v
    ) s
  ),
  super as materialized (
    select t.name
    from pawl.document_type t
    where t.tenant = p_tenant
      and jsonb_array_length(t.definition -> 'supers') > 0
  ),
  other as materialized (
    select g.id, g.uuid, g.type, g.revision, g.keys -> g.type as old_key, g.key, g.body,
      case
        when g.keys -> g.type = g.key then g.keys
        when g.type in (select s.name from super s) then pawl.document_keys(p_tenant, g.type, g.key)
        else jsonb_build_object(g.type, g.key)
      end as keys
    from given g
    where g.body is not null
      and (g.others > 0 or g.keys -> g.type is distinct from g.key)
  ),
  -- Never waited for: a transaction that holds one of these rows may wait for another one of them. With the same revision a body has the references
  -- that were read.
  held as materialized (
    select o.id, o.uuid, o.type, o.revision, o.old_key, o.key, o.body, o.keys
    from other o
    cross join lateral (
      select d.id
      from pawl.document d
      where d.tenant = p_tenant
        and d.id = o.id
        and d.revision = o.revision
      for no key update skip locked
    ) d
  ),
  written as (
    update pawl.document d
    set body = h.body, keys = h.keys
    from held h
    where d.tenant = p_tenant
      and d.id = h.id
      and d.revision = h.revision
    returning h.id, h.uuid, h.type, h.revision, h.old_key, h.key, h.old_key <> h.key as is_renamed
  )
  select array(select o.id from other o except select h.id from held h order by 1), array_agg(w.id) filter (where w.is_renamed), array_agg(w.type),
    array_agg(w.uuid::text), array_agg(case when w.is_renamed then 'document.key-updated' else 'document.updated' end),
    array_agg(pawl.cascade_payload(w.type, w.revision, w.old_key, w.key)), array_agg(jsonb_build_object('id', w.id::text))
  into locked, v_renamed, v_types, v_uuids, v_events, v_payloads, v_headers
  from written w;
  if v_events is not null then
    perform pawl.append_row_events(p_tenant, 'documents', v_types, v_uuids, v_events, v_payloads, v_headers);
  end if;
  onward := pawl.referred_documents(p_tenant, v_renamed);
end
$$;

-- The value hash of a flat key, as events carry it. hashOfKey in canonical.ts returns the same.
create function pawl.document_value_hash(p_type text, p_key jsonb) returns text
language sql stable parallel safe
return encode(sha256(convert_to(p_type || E'\n' || p_key::text, 'UTF8')), 'hex');

-- What an event of the refresh says.
create function pawl.cascade_payload(p_type text, p_revision integer, p_old_key jsonb, p_key jsonb) returns jsonb
language sql stable parallel safe
return case
  when p_old_key = p_key then jsonb_build_object('revision', p_revision, 'cause', 'cascade')
  else jsonb_build_object('revision', p_revision, 'oldKey', p_old_key, 'newKey', p_key, 'oldHash', pawl.document_value_hash(p_type, p_old_key),
    'newHash', pawl.document_value_hash(p_type, p_key), 'cause', 'cascade')
end;

-- The flat keys of a document by type, from its own: those of its superclasses have other names.
create function pawl.document_keys(p_tenant text, p_type text, p_key jsonb) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
  select jsonb_build_object(p_type, p_key) || coalesce((
    select jsonb_object_agg(s.super ->> 'type', (
      select jsonb_object_agg(f.value, p_key -> f.key)
      from jsonb_each_text(s.super -> 'names') f
    ))
    from jsonb_array_elements((
      select t.definition -> 'supers'
      from pawl.document_type t
      where t.tenant = p_tenant
        and t.name = p_type
    )) s(super)
  ), '{}')
$$;

-- ---- writes. Each runs in READ COMMITTED with a new snapshot per statement, and answers a refusal: a caller's transaction must survive it.
-- Locks, in this order: targets (KEY SHARE, by id), the document (NO KEY UPDATE; UPDATE for a bound re-point), key rows (by hash).

create function pawl.document_type_lock(p_tenant text, p_type text) returns bigint
language sql immutable parallel safe
return hashtextextended('pawl.document_type/' || p_tenant || '/' || p_type, 0);

-- Stores definitions, given as a JSON array of {name, shape, definition}, by name, until one has another shape than what is stored. Returns that one: with
-- the stored definition if it has documents, and is left as it is; without, the others take another call. An insert holds the type's lock shared, so
-- none comes between the scan for documents and the change. Waiting for it with other locks, this could deadlock with a caller's transaction.
create function pawl.keep_document_types(p_tenant text, p_types jsonb) returns table (name text, stored jsonb)
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
#variable_conflict use_column
declare
  v_type record;
  v_is_other boolean;
  v_is_changed boolean := false;
begin
  for v_type in select t.name, t.shape, t.definition from jsonb_to_recordset(p_types) t(name text, shape text, definition jsonb) order by 1 loop
    -- The insert below would lock a row that it leaves as it is.
    continue when exists (
      select
      from pawl.document_type t
      where t.tenant = p_tenant and t.name = v_type.name and t.shape_hash = v_type.shape and t.definition = v_type.definition
    );
    v_is_other := exists (select from pawl.document_type t where t.tenant = p_tenant and t.name = v_type.name and t.shape_hash <> v_type.shape);
    if v_is_other and not v_is_changed then
      perform pg_advisory_xact_lock(pawl.document_type_lock(p_tenant, v_type.name));
      if exists (select from pawl.document d where d.tenant = p_tenant and d.type = v_type.name) then
        return query select t.name, t.definition from pawl.document_type t where t.tenant = p_tenant and t.name = v_type.name;
        return;
      end if;
    end if;
    if v_is_other then
      return query select v_type.name, null::jsonb;
      exit when v_is_changed;
    end if;
    insert into pawl.document_type as t (tenant, name, shape_hash, definition)
    values (p_tenant, v_type.name, v_type.shape, v_type.definition)
    on conflict (tenant, name) do update
    set shape_hash = excluded.shape_hash, definition = excluded.definition, changed_at = pawl.now()
    where t.shape_hash = excluded.shape_hash or v_is_other;
    v_is_changed := v_is_changed or found;
    exit when v_is_other;
  end loop;
end
$$;

-- Locks what a write refers to, in order of id. False: one is gone, or, where p_nodes has the nodes of unified paths, one has another key by now.
-- Those nodes are locked too: none of them can be re-pointed until this transaction ends.
create function pawl.hold_documents(p_tenant text, p_targets bigint[], p_nodes jsonb) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  v_found integer;
begin
  perform
  from pawl.document d
  where d.tenant = p_tenant
    and d.id = any (p_targets)
  order by d.id
  for key share;
  get diagnostics v_found = row_count;
  if v_found < cardinality(p_targets) then
    return false;
  end if;
  return p_nodes is null or not exists (
    select
    from unnest((p_nodes ->> 'ids')::bigint[], pawl.find_documents(p_tenant, (p_nodes ->> 'own')::bytea[], (p_nodes ->> 'refs')::integer[],
      (p_nodes ->> 'ends')::integer[])) i(was, is_now)
    where i.was <> i.is_now
      or (i.was is not null and i.is_now is null)
  );
end
$$;

-- The document in the way of one that wants these identities, and whether only an old key of it is. Present keys of p_others are not in the way: they
-- are written by the same call. Removes old keys whose time is over. Null: none is in the way any more.
create function pawl.key_holder(p_tenant text, p_id bigint, p_identities jsonb, p_others bigint[] default '{}') returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off as $$
begin
  delete from pawl.document_key k
  where k.tenant = p_tenant
    and k.hash = any (array(
      select o.hash
      from jsonb_to_recordset(p_identities) i(hash text)
      cross join lateral (
        select o.hash
        from pawl.document_key o
        where o.tenant = p_tenant
          and o.hash = decode(i.hash, 'hex')
          and o.alias_until <= pawl.now()
        -- Another transaction removes it: waited for, the two could deadlock.
        for update skip locked
      ) o
    ));
  return (
    select jsonb_build_object('n', i.n, 'is_old', k.alias_until is not null, 'type', d.type, 'uuid', d.uuid, 'key', d.keys -> d.type)
    from rows from (jsonb_to_recordset(p_identities) as (hash text)) with ordinality i(hash, n)
    cross join lateral (
      select k.document_id, k.alias_until
      from pawl.document_key k
      where k.tenant = p_tenant
        and k.hash = decode(i.hash, 'hex')
        and k.document_id <> p_id
        and (k.alias_until > pawl.now() or (k.alias_until is null and not k.document_id = any (p_others)))
      offset 0
    ) k
    join pawl.document d on d.tenant = p_tenant and d.id = k.document_id
    order by i.n
    limit 1
  );
end
$$;

-- Inserts new documents of one type, one or a thousand: a JSON array of {receipt, content, keys, body, identities: [{type, hash, parts, refs}],
-- links: [{path, to, type, in_key, names}]}; a link without to refers to the document itself. Returns what became of each, by its number from 1.
-- 'moved': start again, the key is taken by now, or a target is gone. 'taken': the key of a superclass belongs to another. 'model': the definition
-- has changed. Key rows are inserted in order of hash: unordered, two calls would deadlock.
create function pawl.insert_documents(p_tenant text, p_type text, p_shape text, p_docs jsonb, p_targets bigint[], p_nodes jsonb)
returns table (n integer, outcome text, uuid uuid, id bigint, holder jsonb)
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  v_count integer := jsonb_array_length(p_docs);
  v_refusal text;
  v_ids bigint[];
  v_uuids uuid[];
  v_claims bigint[];
  v_lost integer[] := '{}';
begin
  begin
    perform pg_advisory_xact_lock_shared(pawl.document_type_lock(p_tenant, p_type));
    -- A snapshot that is older than a change of the type does not show it; a locking read fails there.
    if current_setting('transaction_isolation') <> 'read committed' then
      perform from pawl.document_type t where t.tenant = p_tenant and t.name = p_type for share;
    end if;
    if exists (select from pawl.document_type t where t.tenant = p_tenant and t.name = p_type and t.shape_hash <> p_shape) then
      raise exception using errcode = 'PW001';
    end if;
  exception
    -- Gives the lock back: in a caller's transaction, the definition that is stored next would wait for it forever.
    when sqlstate 'PW001' then
      v_refusal := 'model';
  end;
  if v_refusal is null and not pawl.hold_documents(p_tenant, p_targets, p_nodes) then
    v_refusal := 'moved';
  end if;
  if v_refusal is not null then
    return query select i, v_refusal, null::uuid, null::bigint, null::jsonb from generate_series(1, v_count) i;
    return;
  end if;
  v_ids := array(select nextval('pawl.document_id') from generate_series(1, v_count));
  v_uuids := array(select gen_random_uuid() from generate_series(1, v_count));
  insert into pawl.document (tenant, id, uuid, type, receipt, content, keys, body)
  select p_tenant, v_ids[e.n], v_uuids[e.n], p_type, e.receipt, decode(e.content, 'hex'), e.keys, e.body
  from rows from (jsonb_to_recordset(p_docs) as (receipt bigint, content text, keys jsonb, body jsonb)) with ordinality e(receipt, content, keys, body, n);
  with claimed as (
    insert into pawl.document_key (tenant, hash, document_id, type, parts, refs)
    select p_tenant, decode(i.hash, 'hex'), v_ids[e.n], i.type, i.parts, i.refs
    from rows from (jsonb_to_recordset(p_docs) as (identities jsonb)) with ordinality e(identities, n)
    cross join lateral jsonb_to_recordset(e.identities) i(type text, hash text, parts jsonb, refs bigint[])
    order by 2
    on conflict (tenant, hash) do nothing
    returning document_id
  )
  select array_agg(c.document_id) into v_claims
  from claimed c;
  if coalesce(cardinality(v_claims), 0) < (select sum(jsonb_array_length(e.identities)) from jsonb_to_recordset(p_docs) e(identities jsonb)) then
    v_lost := array(
      select e.n
      from rows from (jsonb_to_recordset(p_docs) as (identities jsonb)) with ordinality e(identities, n)
      where (select count(*) from unnest(v_claims) c where c = v_ids[e.n]) < jsonb_array_length(e.identities)
    );
    return query
      select l, case when h.holder is null or ((h.holder ->> 'n')::integer = 1 and not (h.holder ->> 'is_old')::boolean) then 'moved'
          when (h.holder ->> 'is_old')::boolean then 'renamed'
          else 'taken'
        end, null::uuid, null::bigint, h.holder
      from unnest(v_lost) l
      cross join lateral pawl.key_holder(p_tenant, v_ids[l], p_docs -> (l - 1) -> 'identities') h(holder);
    delete from pawl.document d
    where d.tenant = p_tenant
      and d.id = any (array(select v_ids[l] from unnest(v_lost) l));
  end if;
  insert into pawl.document_ref (tenant, from_id, path, to_id, type, in_key, names)
  select p_tenant, v_ids[e.n], l.path, coalesce(l."to", v_ids[e.n]), l.type, l.in_key, l.names
  from rows from (jsonb_to_recordset(p_docs) as (links jsonb)) with ordinality e(links, n)
  cross join lateral jsonb_to_recordset(e.links) l(path text[], "to" bigint, type text, in_key boolean, names jsonb)
  where not e.n = any (v_lost);
  if cardinality(v_lost) < v_count then
    perform pawl.append_row_events(p_tenant, 'documents', array_agg(p_type), array_agg(v_uuids[e.n]::text), array_agg('document.created'::text),
      array_agg(jsonb_build_object('revision', 1, 'key', e.key, 'hash', pawl.document_value_hash(p_type, e.key))),
      array_agg(jsonb_build_object('id', v_ids[e.n]::text)))
    from (
      select e.n, e.keys -> p_type as key
      from rows from (jsonb_to_recordset(p_docs) as (keys jsonb)) with ordinality e(keys, n)
      where not e.n = any (v_lost)
      order by e.n
    ) e;
  end if;
  return query select i, 'created', v_uuids[i], v_ids[i], null::jsonb from generate_series(1, v_count) i where not i = any (v_lost);
end
$$;

-- The document that holds a leaf of a key: from the references of an identity, step by step. A step is [number of the reference, declared type].
create function pawl.leaf_owner(p_tenant text, p_refs bigint[], p_steps jsonb) returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  v_refs bigint[] := p_refs;
  v_owner bigint;
begin
  for i in 0..jsonb_array_length(p_steps) - 1 loop
    v_owner := v_refs[(p_steps -> i ->> 0)::integer];
    v_refs := (
      select k.refs
      from pawl.document_key k
      where k.tenant = p_tenant
        and k.document_id = v_owner
        and k.type = p_steps -> i ->> 1
        and k.alias_until is null
    );
  end loop;
  return v_owner;
end
$$;

-- Documents that a re-point of this one would part from their other references: up to five. It locks the document FOR UPDATE: a child that is being
-- inserted holds KEY SHARE, and is waited for at most two seconds, because a stream of them would starve it. Null: none, and none can come. Above READ
-- COMMITTED a child may be younger than the snapshot, so there it is never null.
create function pawl.bound_documents(p_tenant text, p_id bigint, p_by jsonb) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '2s' set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  begin
    perform from pawl.document d where d.tenant = p_tenant and d.id = p_id for update;
  exception
    when lock_not_available or deadlock_detected then
      return '[]';
  end;
  return (
    with recursive up(id, depth) as (
      select p_id, 0
      union
      select r.from_id, u.depth + 1
      from up u
      join pawl.document_ref r on r.tenant = p_tenant and r.to_id = u.id
      where r.in_key
        and u.depth < 16
    )
    select coalesce(jsonb_agg(jsonb_build_object('type', f.type, 'uuid', f.uuid, 'path', f.path)), '[]')
    from (
      select d.type, d.uuid, array_to_string(r.path, '.') as path
      from up u
      join pawl.document_ref r on r.tenant = p_tenant and r.to_id = u.id
      join pawl.document d on d.tenant = p_tenant and d.id = r.from_id
      where exists (
        select
        from jsonb_to_recordset(p_by) b(type text, path text)
        where b.type = d.type
          and array_to_string(r.path, '.') ~ b.path
      )
      limit 5
    ) f
    having count(*) > 0 or current_setting('transaction_isolation') <> 'read committed'
  );
end
$$;

-- Whether a write of an existing document may go on, under its lock: {type, shape, uuid or id, is_post, is_new_only, revision, receipt, policy, content,
-- identities, links, targets, nodes, bound: [{steps, by: [{type, path}]}]}. The order of the questions is the promise: no-op before stale, so that
-- equal writes that arrive in any order all succeed. 'write': go on. By: the references that would bind it, where it is re-pointed.
create function pawl.judge_document(p_tenant text, p jsonb) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  v_doc record;
  v_answer jsonb;
  v_own record;
  v_is_same_key boolean;
  v_receipt bigint := (p ->> 'receipt')::bigint;
  v_holder jsonb;
  v_by jsonb;
  v_bound jsonb;
begin
  if not pawl.hold_documents(p_tenant, (p ->> 'targets')::bigint[], nullif(p -> 'nodes', 'null')) then
    return jsonb_build_object('outcome', 'moved');
  end if;
  if p ->> 'uuid' is not null then
    select d.id, d.uuid, d.type, d.revision, d.receipt, d.content into v_doc
    from pawl.document d where d.tenant = p_tenant and d.uuid = (p ->> 'uuid')::uuid for no key update;
  else
    select d.id, d.uuid, d.type, d.revision, d.receipt, d.content into v_doc
    from pawl.document d where d.tenant = p_tenant and d.id = (p ->> 'id')::bigint for no key update;
  end if;
  if not found or v_doc.type <> p ->> 'type' then
    if not (p ->> 'is_post')::boolean then
      return '{"outcome": "missing"}';
    end if;
    -- The key may be that of a document as its superclass.
    v_holder := pawl.key_holder(p_tenant, 0, p -> 'identities');
    return jsonb_build_object('outcome', case when v_holder ->> 'type' <> p ->> 'type' and not (v_holder ->> 'is_old')::boolean then 'taken' else 'moved' end,
      'holder', v_holder);
  elsif exists (select from pawl.document_type t where t.tenant = p_tenant and t.name = v_doc.type and t.shape_hash <> p ->> 'shape') then
    return jsonb_build_object('outcome', 'model');
  end if;
  v_answer := jsonb_build_object('id', v_doc.id, 'uuid', v_doc.uuid, 'revision', v_doc.revision, 'receipt', v_doc.receipt::text);
  select k.hash, k.parts, k.refs into v_own
  from pawl.document_key k
  where k.tenant = p_tenant and k.document_id = v_doc.id and k.type = v_doc.type and k.alias_until is null;
  -- Found by its key and renamed since: the key may belong to another by now.
  if (p ->> 'is_post')::boolean and v_own.hash <> decode(p -> 'identities' -> 0 ->> 'hash', 'hex') then
    return v_answer || jsonb_build_object('outcome', 'moved');
  elsif (p ->> 'is_new_only')::boolean then
    return v_answer || jsonb_build_object('outcome', 'exists');
  elsif (p ->> 'revision')::integer <> v_doc.revision then
    return v_answer || jsonb_build_object('outcome', 'mismatch');
  end if;
  v_is_same_key := not exists (
    select
    from jsonb_to_recordset(p -> 'identities') i(hash text)
    where not exists (
      select
      from pawl.document_key k
      where k.tenant = p_tenant and k.hash = decode(i.hash, 'hex') and k.document_id = v_doc.id and k.alias_until is null
    )
  );
  if v_is_same_key and v_doc.content = decode(p ->> 'content', 'hex')
    and (select count(*) from pawl.document_ref r where r.tenant = p_tenant and r.from_id = v_doc.id) = jsonb_array_length(p -> 'links')
    and not exists (
      select
      from jsonb_to_recordset(p -> 'links') l(path text[], "to" bigint)
      where not exists (
        select
        from pawl.document_ref r
        where r.tenant = p_tenant and r.from_id = v_doc.id and r.path = l.path and r.to_id = coalesce(l."to", v_doc.id)
      )
    )
  then
    -- An older, different write that comes later must not win over this one.
    update pawl.document d set receipt = v_receipt where d.tenant = p_tenant and d.id = v_doc.id and d.receipt < v_receipt;
    return v_answer || jsonb_build_object('outcome', 'unchanged', 'is_key_changed', false);
  elsif p ->> 'revision' is null and v_receipt < v_doc.receipt then
    return v_answer || jsonb_build_object('outcome', 'stale');
  elsif not v_is_same_key and p ->> 'policy' <> 'cascade' then
    return v_answer || jsonb_build_object('outcome', p ->> 'policy', 'parts', v_own.parts, 'refs', to_jsonb(v_own.refs::text[]));
  elsif not v_is_same_key then
    select jsonb_agg(y) into v_by
    from jsonb_array_elements(p -> 'bound') b
    cross join lateral jsonb_array_elements(b -> 'by') y
    where pawl.leaf_owner(p_tenant, v_own.refs, b -> 'steps')
      is distinct from pawl.leaf_owner(p_tenant, array(select jsonb_array_elements_text(p -> 'identities' -> 0 -> 'refs')::bigint), b -> 'steps');
    if v_by is not null then
      v_bound := pawl.bound_documents(p_tenant, v_doc.id, v_by);
    end if;
    if v_bound is not null then
      return v_answer || jsonb_build_object('outcome', 'bound', 'dependents', v_bound, 'isolation', current_setting('transaction_isolation'));
    end if;
  end if;
  return v_answer || jsonb_build_object('outcome', 'write', 'is_key_changed', not v_is_same_key, 'by', v_by);
end
$$;

-- Claims keys, a JSON array of {id, type, hash, parts, refs}, one after another by hash: all or none. Old keys of the same document, and those whose time
-- is over, give way. Keys that documents of the array have now are moved at the end. It locks no key of others, and waits for none after it has
-- moved one: else two claims could deadlock, or a claim and an insert.
create function pawl.claim_keys(p_tenant text, p_claims jsonb) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off as $$
declare
  v_ids bigint[] := array(select c.id from jsonb_to_recordset(p_claims) c(id bigint));
  v_claim pawl.document_key;
  v_owner bigint;
  v_moves pawl.document_key[] := '{}';
begin
  for v_claim.document_id, v_claim.type, v_claim.hash, v_claim.parts, v_claim.refs in
    select c.id, c.type, decode(c.hash, 'hex'), c.parts, c.refs
    from jsonb_to_recordset(p_claims) c(id bigint, type text, hash text, parts jsonb, refs bigint[])
    order by 3
  loop
    select k.document_id into v_owner
    from pawl.document_key k
    where k.tenant = p_tenant and k.hash = v_claim.hash and k.document_id = any (v_ids) and k.alias_until is null;
    if found then
      v_moves := v_moves || case when v_owner <> v_claim.document_id then array[v_claim] end;
      continue;
    end if;
    delete from pawl.document_key k
    where k.tenant = p_tenant
      and k.hash = v_claim.hash
      and (k.alias_until <= pawl.now() or (k.alias_until is not null and k.document_id = v_claim.document_id));
    insert into pawl.document_key (tenant, hash, document_id, type, parts, refs)
    values (p_tenant, v_claim.hash, v_claim.document_id, v_claim.type, v_claim.parts, v_claim.refs)
    on conflict (tenant, hash) do nothing;
    if not found then
      raise exception using errcode = 'PW001';
    end if;
  end loop;
  foreach v_claim in array v_moves loop
    update pawl.document_key k
    set document_id = v_claim.document_id, parts = v_claim.parts, refs = v_claim.refs
    where k.tenant = p_tenant and k.hash = v_claim.hash;
  end loop;
  return true;
exception
  when sqlstate 'PW001' then
    return false;
end
$$;

-- Turns the keys that a document no longer has into old keys, at most 16 of them, or deletes them.
create function pawl.retire_keys(p_tenant text, p_id bigint, p_identities jsonb, p_old_ms bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
  update pawl.document_key k
  set alias_until = pawl.now() + p_old_ms * interval '1 millisecond'
  where k.tenant = p_tenant
    and k.document_id = p_id
    and k.alias_until is null
    and not k.hash = any (array(select decode(i.hash, 'hex') from jsonb_to_recordset(p_identities) i(hash text)));
  delete from pawl.document_key k
  where k.tenant = p_tenant
    and k.hash = any (array(
      select o.hash
      from pawl.document_key o
      where o.tenant = p_tenant
        and o.document_id = p_id
        and o.alias_until is not null
        and (p_old_ms = 0 or o.alias_until <= pawl.now() or not o.hash = any (array(
          select l.hash
          from pawl.document_key l
          where l.tenant = p_tenant
            and l.document_id = p_id
            and l.alias_until is not null
          order by l.alias_until desc
          limit 16
        )))
      -- A claim may remove one whose time is over.
      for update skip locked
    ));
end
$$;

-- Writes a document that was judged, under its lock: the row, the references that differ, the event. Another key may have the same values, where the stored
-- ones are older than a rename: what refers to it is walked all the same.
create function pawl.store_document(p_tenant text, p_id bigint, p jsonb, p_is_key_changed boolean) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  v_type text := p ->> 'type';
  v_new jsonb := p -> 'keys' -> v_type;
  v_old record;
begin
  select d.uuid, d.revision, d.keys, d.keys -> v_type as key into v_old
  from pawl.document d where d.tenant = p_tenant and d.id = p_id;
  update pawl.document d
  set revision = d.revision + 1, receipt = greatest(d.receipt, (p ->> 'receipt')::bigint), content = decode(p ->> 'content', 'hex'),
    keys = p -> 'keys', body = p -> 'body', changed_at = pawl.now()
  where d.tenant = p_tenant
    and d.id = p_id
    and d.revision = v_old.revision;
  delete from pawl.document_ref r
  where r.tenant = p_tenant
    and r.from_id = p_id
    and not exists (
      select
      from jsonb_to_recordset(p -> 'links') l(path text[], "to" bigint)
      where l.path = r.path
        and coalesce(l."to", p_id) = r.to_id
    );
  insert into pawl.document_ref (tenant, from_id, path, to_id, type, in_key, names)
  select p_tenant, p_id, l.path, coalesce(l."to", p_id), l.type, l.in_key, l.names
  from jsonb_to_recordset(p -> 'links') l(path text[], "to" bigint, type text, in_key boolean, names jsonb)
  on conflict (tenant, from_id, path) do nothing;
  perform pawl.append_event(p_tenant, 'documents', v_type, v_old.uuid::text,
    case when v_old.keys = p -> 'keys' then 'document.updated' else 'document.key-updated' end,
    jsonb_build_object('revision', v_old.revision + 1, 'cause', 'write') || case
      when v_old.keys = p -> 'keys' then jsonb_build_object('key', v_new, 'hash', pawl.document_value_hash(v_type, v_new))
      else jsonb_build_object('oldKey', v_old.key, 'newKey', v_new, 'oldHash', pawl.document_value_hash(v_type, v_old.key),
        'newHash', pawl.document_value_hash(v_type, v_new))
    end, jsonb_build_object('id', p_id::text) || case when p_is_key_changed then '{"walk": true}' else '{}' end::jsonb);
end
$$;

-- Writes an existing document, as judge_document describes it, with keys, body and old_ms. The new key is claimed before the old one is retired: in
-- the other order two renames that cross would deadlock.
create function pawl.write_document(p_tenant text, p jsonb) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_answer jsonb := pawl.judge_document(p_tenant, p);
  v_id bigint := (v_answer ->> 'id')::bigint;
  v_holder jsonb;
begin
  if v_answer ->> 'outcome' <> 'write' then
    return v_answer;
  end if;
  if (v_answer ->> 'is_key_changed')::boolean then
    if not pawl.claim_keys(p_tenant, (select jsonb_agg(i || jsonb_build_object('id', v_id)) from jsonb_array_elements(p -> 'identities') i)) then
      v_holder := pawl.key_holder(p_tenant, v_id, p -> 'identities');
      return v_answer || jsonb_build_object('outcome', case when v_holder is null then 'moved' else 'taken' end, 'holder', v_holder);
    end if;
    perform pawl.retire_keys(p_tenant, v_id, p -> 'identities', (p ->> 'old_ms')::bigint);
  end if;
  perform pawl.store_document(p_tenant, v_id, p, (v_answer ->> 'is_key_changed')::boolean);
  return v_answer || jsonb_build_object('outcome', 'updated', 'revision', (v_answer ->> 'revision')::integer + 1);
end
$$;

-- Writes several existing documents, all or none; their keys may change places. Returns an array of answers, or {n, answer} of the first that was refused.
create function pawl.put_documents(p_tenant text, p_writes jsonb) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  v_answers jsonb := '[]';
  v_answer jsonb;
  v_count integer := jsonb_array_length(p_writes);
  v_n integer;
  v_changed jsonb := '[]';
  v_bound jsonb;
begin
  begin
    perform
    from pawl.document d
    where d.tenant = p_tenant
      and d.uuid = any (array(select (w ->> 'uuid')::uuid from jsonb_array_elements(p_writes) w))
    order by d.id
    for no key update;
    for i in 0..v_count - 1 loop
      v_n := i;
      v_answer := pawl.judge_document(p_tenant, p_writes -> i);
      if v_answer ->> 'outcome' not in ('write', 'unchanged') then
        raise exception using errcode = 'PW001';
      end if;
      v_answers := v_answers || v_answer;
      if (v_answer ->> 'is_key_changed')::boolean then
        v_changed := v_changed || jsonb_build_object('n', i, 'id', v_answer -> 'id', 'identities', p_writes -> i -> 'identities',
          'old_ms', p_writes -> i -> 'old_ms');
      end if;
    end loop;
    if not pawl.claim_keys(p_tenant, (
      select coalesce(jsonb_agg(i || jsonb_build_object('id', c.id)), '[]')
      from jsonb_to_recordset(v_changed) c(id bigint, identities jsonb)
      cross join lateral jsonb_array_elements(c.identities) i
    )) then
      select c.n, jsonb_build_object('outcome', 'taken', 'holder', h) into v_n, v_answer
      from jsonb_to_recordset(v_changed) c(n integer, id bigint, identities jsonb)
      cross join lateral pawl.key_holder(p_tenant, c.id, c.identities, array(select (o -> 'id')::bigint from jsonb_array_elements(v_changed) o)) h
      where h is not null
      limit 1;
      if not found then
        v_n := 0;
        v_answer := jsonb_build_object('outcome', 'moved');
      end if;
      raise exception using errcode = 'PW001';
    end if;
    perform pawl.retire_keys(p_tenant, c.id, c.identities, c.old_ms)
    from jsonb_to_recordset(v_changed) c(id bigint, identities jsonb, old_ms bigint);
    for i in 0..v_count - 1 loop
      continue when v_answers -> i ->> 'outcome' = 'unchanged';
      v_answer := v_answers -> i;
      perform pawl.store_document(p_tenant, (v_answer ->> 'id')::bigint, p_writes -> i, (v_answer ->> 'is_key_changed')::boolean);
      v_answers := jsonb_set(v_answers, array[i::text], v_answer || jsonb_build_object('outcome', 'updated', 'revision', (v_answer ->> 'revision')::integer + 1));
    end loop;
    -- A document of the call may refer since then to one that the call re-points.
    for i in 0..v_count - 1 loop
      continue when nullif(v_answers -> i -> 'by', 'null') is null;
      v_bound := pawl.bound_documents(p_tenant, (v_answers -> i ->> 'id')::bigint, v_answers -> i -> 'by');
      if v_bound is not null then
        v_n := i;
        v_answer := (v_answers -> i) || jsonb_build_object('outcome', 'bound', 'dependents', v_bound);
        raise exception using errcode = 'PW001';
      end if;
    end loop;
  exception
    when sqlstate 'PW001' then
      return jsonb_build_object('n', v_n, 'answer', coalesce(v_answer, '{"outcome": "moved"}'));
  end;
  return v_answers;
end
$$;

-- Five references to a document from others, and how many there are, counted to 10,000. Null: none.
create function pawl.document_referrers(p_tenant text, p_id bigint) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
  select jsonb_build_object('count', count(*), 'referrers', jsonb_agg(f.referrer) filter (where f.n <= 5))
  from (
    select row_number() over () as n, case when row_number() over () <= 5 then (
        select jsonb_build_object('type', d.type, 'uuid', d.uuid, 'path', array_to_string(r.path, '.'))
        from pawl.document d
        where d.tenant = p_tenant
          and d.id = r.from_id
      ) end as referrer
    from pawl.document_ref r
    where r.tenant = p_tenant
      and r.to_id = p_id
      and r.from_id <> p_id
    limit 10000
  ) f
  having count(*) > 0
$$;

-- Deletes a document that nothing else refers to. Referrers are counted without a lock first: FOR UPDATE can be starved by a stream of child inserts.
create function pawl.delete_document(p_tenant text, p_type text, p_uuid uuid, p_revision integer) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  v_doc record;
  v_referrers jsonb;
begin
  for i in 1..2 loop
    if i = 1 then
      select d.id, d.type, d.revision, d.keys -> d.type as key into v_doc
      from pawl.document d where d.tenant = p_tenant and d.uuid = p_uuid;
    else
      select d.id, d.type, d.revision, d.keys -> d.type as key into v_doc
      from pawl.document d where d.tenant = p_tenant and d.uuid = p_uuid for update;
    end if;
    -- With the type in the statement its plan without statistics reads every document of the type.
    if not found or v_doc.type <> p_type then
      return jsonb_build_object('outcome', 'missing');
    elsif v_doc.revision <> p_revision then
      return jsonb_build_object('outcome', 'mismatch');
    end if;
    v_referrers := pawl.document_referrers(p_tenant, v_doc.id);
    if v_referrers is not null then
      return v_referrers || jsonb_build_object('outcome', 'referenced');
    end if;
  end loop;
  -- A claim may remove an old one of them, and wait for another: in order of hash this waits first.
  perform from pawl.document_key k where k.tenant = p_tenant and k.document_id = v_doc.id order by k.hash for update;
  begin
    delete from pawl.document_ref r where r.tenant = p_tenant and r.from_id = v_doc.id and r.to_id = v_doc.id;
    delete from pawl.document d where d.tenant = p_tenant and d.id = v_doc.id;
  exception
    -- Above READ COMMITTED: a referrer that is younger than the snapshot. Only another transaction can see it.
    when foreign_key_violation then
      raise exception using errcode = 'serialization_failure',
        message = 'could not serialize access: a document that this transaction cannot see refers to the one that it deletes';
  end;
  perform pawl.append_event(p_tenant, 'documents', p_type, p_uuid::text, 'document.deleted',
    jsonb_build_object('key', v_doc.key, 'hash', pawl.document_value_hash(p_type, v_doc.key)), jsonb_build_object('id', v_doc.id::text));
  return jsonb_build_object('outcome', 'deleted');
end
$$;

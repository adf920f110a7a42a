-- name: installation
-- The installation's id.
-- Locks: none.
-- Plan: installation_pkey.
-- One row: the id.
select i.id::text as id
from pawl.installation i
where i.tenant = ''

-- name: standby-names
-- The synchronous standbys that the server has been told of. It runs in any search path.
-- Locks: none.
-- Plan: a call.
-- One row: their names, an empty string where there are none.
select pg_catalog.current_setting('synchronous_standby_names') as names

-- name: set-durability
-- Sets how durable the commit of this transaction is.
-- Locks: none.
-- Plan: a call.
-- One row, without meaning.
select pawl.set_durability(:level::text, :may_lower::boolean)::text as level

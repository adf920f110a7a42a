-- Logical replication slots of this database, such as Debezium's, and the write-ahead log that each keeps.
-- Locks: none.
-- Plan: pg_replication_slots.
-- Rows: one per slot, the dearest first.
select r.slot_name::text as name, r.active as is_active, r.wal_status as state,
  pg_wal_lsn_diff(pg_current_wal_lsn(), r.restart_lsn)::bigint::text as bytes
from pg_replication_slots r
where r.database = current_database()
order by pg_wal_lsn_diff(pg_current_wal_lsn(), r.restart_lsn) desc nulls last

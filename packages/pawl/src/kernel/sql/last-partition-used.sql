-- Says that rows went to the open-ended last partition of a table, because the days that were prepared are used up.
-- Locks: the alert's row.
-- Plan: an insert or update inside the function.
-- One row, without meaning.
select pawl.raise_alert('', 'partition.last', :name::text, format('The days prepared for pawl.%s are used up, and rows go to its last '
    'partition. Nothing is lost, but retention cannot remove them. Maintenance makes room when no transaction holds the table.', :name::text))::text as raised

-- name: next-receipt
-- Draws a receipt: the order in which requests arrived.
-- Locks: none.
-- Plan: a call.
-- One row: the receipt.
select nextval('pawl.document_receipt')::text as receipt

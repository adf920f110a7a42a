-- Whether a suspect of these kinds waits in one of these queues.
-- Locks: none.
-- Plan: job_suspect.
-- One row: yes or no.
select exists (
    select
    from pawl.job j
    where j.queue = any (:queues::text[])
      and j.state = 'ready'
      and j.suspect
      and j.kind = any (:kinds::text[])
  ) as waiting

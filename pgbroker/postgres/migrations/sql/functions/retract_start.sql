-- The task of one claim did not begin after all, though its start may be recorded: give the job back as release() does.
-- For whoever called start_job(), was not answered, and has not run the task.
-- Returns: how many jobs went back, 0 or 1.
-- Locks: the row, by key. Index: primary key.
create or replace function pgbroker.retract_start(p_job_id bigint, p_claim bigint) returns integer
language plpgsql as $$
begin
    -- also where no start is recorded: start_job() may be waiting for the same row, and its turn comes first
    update pgbroker.jobs_live j set started_at = null, ack_mode = 'REPORTED'
    where j.job_id = p_job_id and j.claim = p_claim;
    return pgbroker.release(array[p_job_id], array[p_claim]);
end
$$;

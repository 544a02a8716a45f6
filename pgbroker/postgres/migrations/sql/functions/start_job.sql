-- Record that the task of one claim begins, acknowledged before it runs; for whoever is about to run it (strict_start).
--   p_is_repeated  a call before this one was not answered, so a start that is recorded already is the caller's own
-- Returns: whether the task may run: the claim is held, its lease has not run out, and the start is recorded now. False
-- also for a start that somebody else recorded: it may be running there.
-- Locks: the row, by key. Index: primary key.
create or replace function pgbroker.start_job(p_job_id bigint, p_claim bigint, p_is_repeated boolean) returns boolean
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    -- under a lease that has run out the reaper would bury the job while it runs; not started, it only takes it back
    update pgbroker.jobs_live j set started_at = v_now, ack_mode = 'EARLY'
    where j.job_id = p_job_id and j.claim = p_claim and j.started_at is null and j.lease_until > v_now;
    if found then
        return true;
    end if;
    return p_is_repeated and exists (
        select from pgbroker.jobs_live j where j.job_id = p_job_id and j.claim = p_claim and j.ack_mode = 'EARLY');
end
$$;

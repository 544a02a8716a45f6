-- Extend the leases of one worker process.
--   p_claims  those that it still knows of; null: all of them. What it has forgotten runs out and is taken back
-- Returns: how many claims it still holds. lease_until is not indexed, so these updates stay HOT.
-- Index: jobs_live_held. Commits asynchronously: losing a renewal in a crash only shortens a lease.
create or replace function pgbroker.renew(p_worker text, p_lease_seconds double precision, p_claims bigint[] default null)
returns integer
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_count integer;
    v_ids bigint[];
begin
    perform set_config('synchronous_commit', 'off', true);
    -- in the order of ids, as settle() locks, and past rows that are being settled at this moment
    v_ids := array(
        select j.job_id from pgbroker.jobs_live j
        where j.worker = p_worker and j.status = 'RUNNING' and (p_claims is null or j.claim = any (p_claims))
        order by j.job_id for update skip locked);
    update pgbroker.jobs_live j set lease_until = clock_timestamp() + make_interval(secs => p_lease_seconds)
    where j.job_id = any (v_ids);
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

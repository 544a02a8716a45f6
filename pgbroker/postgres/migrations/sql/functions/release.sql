-- Give claimed jobs back that have not started: old place in the queue, attempt returned.
--   p_ids, p_claims  parallel arrays; a claim that was lost, or whose task has started, matches nothing
-- Returns: how many went back. Wakes a sleeper for each queue concerned.
create or replace function pgbroker.release(p_ids bigint[], p_claims bigint[]) returns integer
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_queues text[];
begin
    with given_back as (
        update pgbroker.jobs_live j
        set status = 'PENDING', attempts = greatest(j.attempts - 1, 0), claim = null, worker = null, lease_until = null,
            claimed_at = null, ack_mode = null
        where j.job_id = any (p_ids) and j.claim = any (p_claims) and j.started_at is null
        returning j.queue)
    select array_agg(g.queue) into v_queues from given_back g;
    perform pgbroker.wake(q) from (select distinct unnest(v_queues) q) each_queue;
    return coalesce(cardinality(v_queues), 0);
end
$$;

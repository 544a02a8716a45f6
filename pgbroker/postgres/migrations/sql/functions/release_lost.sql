-- Give back what a worker process holds by this table and does not know of: the answer to its claim was lost with the
-- connection. Old place in the queue, attempt returned, since it was never handed to anybody.
--   p_worker  the process
--   p_known   all claims that it does know of; no claim of it may be on its way
-- Returns: how many went back. Wakes a sleeper for each queue concerned. Index: jobs_live_held.
create or replace function pgbroker.release_lost(p_worker text, p_known bigint[]) returns integer
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_queues text[];
begin
    with given_back as (
        update pgbroker.jobs_live j
        set status = 'PENDING', attempts = greatest(j.attempts - 1, 0), claim = null, worker = null, lease_until = null,
            claimed_at = null, ack_mode = null
        where j.status = 'RUNNING' and j.worker = p_worker and j.started_at is null and j.claim <> all (p_known)
        returning j.queue)
    select array_agg(g.queue) into v_queues from given_back g;
    perform pgbroker.wake(q) from (select distinct unnest(v_queues) q) each_queue;
    return coalesce(cardinality(v_queues), 0);
end
$$;

-- What a worker has to say about claims that it holds. Each array pair names claims; a claim that was lost matches
-- nothing, so nothing happens to a job that somebody else holds by now.
--   p_started, p_started_early   claims whose task has begun, and whether it was acknowledged before
--   p_done, p_done_states        claims whose task ended well, was ignored or handed on, and Celery's state of it; REVOKED
--                                ends as CANCELLED, everything else as DONE
-- Returns: how many of the done ones were still held.
-- Locks: the named rows, by claim through the primary key. Indexes: primary key.
create or replace function pgbroker.settle(
    p_started_ids bigint[], p_started bigint[], p_started_early boolean[],
    p_done_ids bigint[], p_done bigint[], p_done_states text[])
returns integer
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_now timestamptz := clock_timestamp();
    v_count integer := 0;
    v_slot smallint;
    v_history_seconds text;
begin
    if cardinality(p_started) > 0 then
        update pgbroker.jobs_live j
        set started_at = v_now,
            ack_mode = case when p_started_early[array_position(p_started, j.claim)] then 'EARLY' else 'LATE' end::pgbroker.ack_mode
        where j.job_id = any (p_started_ids) and j.claim = any (p_started) and j.started_at is null;
    end if;
    if p_done_states && array['RETRY', 'REVOKED'] then
        insert into pgbroker.job_events (job_id, task_id, kind, attempts, worker)
        select j.job_id, j.task_id, case j.state when 'RETRY' then 'retried' else 'revoked' end, j.attempts, j.worker
        from (
            select l.job_id, l.task_id, l.attempts, l.worker, p_done_states[array_position(p_done, l.claim)] as state
            from pgbroker.jobs_live l where l.job_id = any (p_done_ids) and l.claim = any (p_done) for update) j
        where j.state in ('RETRY', 'REVOKED');
    end if;
    if cardinality(p_done) > 0 then
        -- here and not by calls of history_seconds() and history_slot(): an SQL function is parsed at each call
        select value into v_history_seconds from pgbroker.settings where name = 'history_seconds';
        if v_history_seconds is distinct from '0' then
            v_slot := (floor(extract(epoch from v_now) / 86400)::bigint % 32)::smallint;
            with gone as (
                delete from pgbroker.jobs_live j
                where j.job_id = any (p_done_ids) and j.claim = any (p_done)
                returning j.*)
            insert into pgbroker.job_history (slot, job_id, enqueued_at, run_after, claimed_at, started_at, finished_at,
                status, priority, attempts, max_attempts, queue, task_id, task_name, worker, dedupe_key, last_error,
                result_state)
            select v_slot, g.job_id, g.enqueued_at, g.run_after, g.claimed_at,
                case when p_done_states[array_position(p_done, g.claim)] = 'REVOKED' then g.started_at
                    else coalesce(g.started_at, g.claimed_at) end, v_now,
                case when p_done_states[array_position(p_done, g.claim)] = 'REVOKED' then 'CANCELLED'
                    else 'DONE' end::pgbroker.job_status, g.priority, g.attempts, g.max_attempts, g.queue,
                g.task_id, g.task_name, g.worker, g.dedupe_key,
                case when p_done_states[array_position(p_done, g.claim)] = 'REVOKED'
                    then 'revoked or expired while a worker held it' else g.last_error end,
                p_done_states[array_position(p_done, g.claim)]
            from gone g;
        else
            delete from pgbroker.jobs_live j where j.job_id = any (p_done_ids) and j.claim = any (p_done);
        end if;
        get diagnostics v_count = row_count;
    end if;
    return v_count;
end
$$;

-- Take a batch of waiting messages out of a queue, in the order in which they would be claimed. Jobs end as CANCELLED.
--   p_queue     the queue; a transient one is emptied at once
--   p_limit     how many jobs at most
--   last_job    null to begin. No job after this one is taken out: the newest there was at the beginning, so that a purge
--               does not run after its publishers for ever
--   lane, after_time, after_id   where to go on; null to begin, lane is null again after the last batch
-- Returns: purged, how many were taken out.
-- Locks: the rows that end, skipping those that somebody is claiming or ending. Index: jobs_live_ready.
create or replace function pgbroker.purge_batch(
    p_queue text, p_limit integer, inout last_job bigint, inout lane smallint, inout after_time timestamptz,
    inout after_id bigint, out purged bigint)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
    v_now timestamptz := clock_timestamp();
    v_ids bigint[] := '{}';
    v_more bigint[];
begin
    purged := 0;
    if last_job is null then
        if pgbroker.queue_kind(p_queue) = 'transient' then
            delete from pgbroker.mailbox m where m.queue = p_queue;
            get diagnostics purged = row_count;
            return;
        end if;
        lane := 9;
        last_job := (select max(j.job_id) from pgbroker.jobs_live j);
    end if;
    while lane is not null and cardinality(v_ids) < p_limit loop
        v_more := array(
            select j.job_id from pgbroker.jobs_live j
            where j.queue = p_queue and j.priority = lane and j.status = 'PENDING' and j.job_id <= last_job
                and (j.run_after, j.job_id) > (coalesce(after_time, '-infinity'), coalesce(after_id, 0))
            order by j.run_after, j.job_id
            limit p_limit - cardinality(v_ids) for update skip locked);
        v_ids := v_ids || v_more;
        if cardinality(v_ids) < p_limit then
            lane := nullif(lane, 0) - 1;
            after_time := null;
            after_id := null;
        else
            after_id := v_ids[p_limit];
            after_time := (select j.run_after from pgbroker.jobs_live j where j.job_id = after_id);
        end if;
    end loop;
    with gone as (
        delete from pgbroker.jobs_live j where j.job_id = any (v_ids) returning j.*
    ), noted as (
        insert into pgbroker.job_history (slot, job_id, enqueued_at, run_after, finished_at, status, priority, attempts,
            max_attempts, queue, task_id, task_name, dedupe_key, last_error, result_state)
        select pgbroker.history_slot(v_now), g.job_id, g.enqueued_at, g.run_after, v_now, 'CANCELLED', g.priority, g.attempts,
            g.max_attempts, g.queue, g.task_id, g.task_name, g.dedupe_key, 'queue purged', 'REVOKED'
        from gone g where pgbroker.history_seconds() > 0
    ), told as (
        -- as note_outcome(), for all at once
        insert into pgbroker.outcome_outbox (job_id, task_id, task_name, queue, outcome, detail, exchange, routing_key,
            content_type, content_encoding, headers, properties, body)
        select g.job_id, g.task_id, g.task_name, g.queue, 'PURGED', 'queue purged', g.exchange, g.routing_key,
            g.content_type, g.content_encoding, g.headers, g.properties, g.body
        from gone g where g.headers is not null and g.task_name is not null
    ), woken as (
        select pg_notify(w.channel, w.payload)
        from pgbroker.waiters w where w.until > v_now and exists (select from gone g where g.task_id = w.task_id)
    )
    select count(*) into purged from gone where (select count(*) from woken) >= 0;
    if purged > 0 then
        perform pg_notify(pgbroker.outcome_channel(), '');
    end if;
end
$$;

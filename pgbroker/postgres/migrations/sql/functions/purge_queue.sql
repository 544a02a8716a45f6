-- Take all waiting messages out of a queue. Jobs that wait end as CANCELLED; running ones go on.
-- Returns: how many were taken out.
create or replace function pgbroker.purge_queue(p_queue text) returns bigint
language plpgsql as $$
declare
    v_count bigint;
    v_now timestamptz := clock_timestamp();
begin
    if pgbroker.queue_kind(p_queue) = 'transient' then
        delete from pgbroker.mailbox where queue = p_queue;
        get diagnostics v_count = row_count;
        return v_count;
    end if;
    with gone as (
        delete from pgbroker.jobs_live j where j.queue = p_queue and j.status = 'PENDING' returning j.*
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
        select pg_notify(w.channel, case when octet_length(w.task_id) < 200 then w.task_id else '' end)
        from pgbroker.waiters w where w.until > v_now and exists (select from gone g where g.task_id = w.task_id)
    )
    select count(*) into v_count from gone where (select count(*) from woken) >= 0;
    if v_count > 0 then
        perform pg_notify(pgbroker.outcome_channel(), '');
    end if;
    return v_count;
end
$$;

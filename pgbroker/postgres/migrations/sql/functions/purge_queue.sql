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
        insert into pgbroker.outcome_outbox (job_id, task_id, task_name, queue, outcome, detail, headers, properties)
        select g.job_id, g.task_id, g.task_name, g.queue, 'PURGED', 'queue purged', g.headers, g.properties
        from gone g where g.headers is not null
    )
    select count(*) into v_count from gone;
    return v_count;
end
$$;

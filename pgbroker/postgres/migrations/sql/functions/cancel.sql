-- End a job that waits, as CANCELLED.
--   p_outcome  what Celery is told, as REVOKED and through the outbox: REVOKED, EXPIRED or PURGED; null: nothing
--   p_detail   why, for people
-- Returns: the job's id, or null if it does not wait (any more).
-- What has expired goes on to the exchange that the queue's x-dead-letter-exchange names, with its dedupe key; if that leads
-- anywhere the task has not ended, so Celery is told nothing.
-- Locks: that one row.
create or replace function pgbroker.cancel(p_job_id bigint, p_outcome text default null, p_detail text default null)
returns bigint
language plpgsql as $$
declare
    v_job pgbroker.jobs_live;
    v_is_told boolean := p_outcome is not null;
begin
    delete from pgbroker.jobs_live j where j.job_id = p_job_id and j.status = 'PENDING' returning j.* into v_job;
    if not found then
        return null;
    end if;
    if p_outcome = 'EXPIRED' and pgbroker.dead_letter(
        v_job.queue, 'expired', p_detail, v_job.task_id, v_job.task_name, v_job.priority, v_job.dedupe_key,
        v_job.max_attempts, v_job.exchange, v_job.routing_key, v_job.content_type, v_job.content_encoding, v_job.headers,
        v_job.properties, v_job.body) > 0
    then
        v_is_told := false;
        p_detail := p_detail || ', sent on to the dead letter exchange';
    end if;
    perform pgbroker.record_history(v_job, 'CANCELLED', case when v_is_told then 'REVOKED' end, p_detail, null);
    if p_outcome = 'REVOKED' then
        insert into pgbroker.job_events (job_id, task_id, kind, attempts, detail)
        values (p_job_id, v_job.task_id, 'revoked', v_job.attempts, p_detail);
    end if;
    if v_is_told then
        perform pgbroker.note_outcome(v_job, p_outcome, coalesce(p_detail, lower(p_outcome)));
    end if;
    return p_job_id;
end
$$;

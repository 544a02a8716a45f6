-- End a job that waits, as CANCELLED.
--   p_outcome  what Celery is told: REVOKED, EXPIRED or PURGED; null for a job that Celery does not know of
-- Returns: the job's id, or null if it does not wait (any more).
-- Locks: that one row.
create or replace function pgbroker.cancel(p_job_id bigint, p_outcome text default null, p_detail text default null)
returns bigint
language plpgsql as $$
declare
    v_job pgbroker.jobs_live;
begin
    delete from pgbroker.jobs_live j where j.job_id = p_job_id and j.status = 'PENDING' returning j.* into v_job;
    if not found then
        return null;
    end if;
    perform pgbroker.record_history(v_job, 'CANCELLED', p_outcome, p_detail, null);
    if v_job.headers is not null and p_outcome is not null then
        insert into pgbroker.outcome_outbox (job_id, task_id, task_name, queue, outcome, detail, headers, properties)
        values (v_job.job_id, v_job.task_id, v_job.task_name, v_job.queue, p_outcome, p_detail, v_job.headers,
            v_job.properties);
    end if;
    return p_job_id;
end
$$;

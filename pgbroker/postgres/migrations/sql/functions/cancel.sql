-- End a job that waits, as CANCELLED.
--   p_outcome  what Celery is told, as REVOKED and through the outbox: REVOKED, EXPIRED or PURGED; null: nothing
--   p_detail   why, for people
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
    perform pgbroker.record_history(
        v_job, 'CANCELLED', case when p_outcome is not null then 'REVOKED' end, p_detail, null);
    if p_outcome is not null then
        perform pgbroker.note_outcome(v_job, p_outcome, coalesce(p_detail, lower(p_outcome)));
    end if;
    return p_job_id;
end
$$;

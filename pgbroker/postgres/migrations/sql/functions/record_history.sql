-- Write one finished job into history; nothing if history_seconds is 0. The row must be gone from jobs_live already.
--   p_status        DONE or CANCELLED
--   p_result_state  Celery's state (SUCCESS, FAILURE, RETRY ...), null: none
--   p_detail        why, for an abnormal end; null: keeps the job's last_error
create or replace function pgbroker.record_history(
    p_job pgbroker.jobs_live, p_status pgbroker.job_status, p_result_state text, p_detail text, p_result text)
returns void
language plpgsql as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    if pgbroker.history_seconds() <= 0 then
        return;
    end if;
    insert into pgbroker.job_history (slot, job_id, enqueued_at, run_after, claimed_at, started_at, finished_at, status,
        priority, attempts, max_attempts, queue, task_id, task_name, worker, dedupe_key, last_error, result_state, result)
    values (pgbroker.history_slot(v_now), p_job.job_id, p_job.enqueued_at, p_job.run_after, p_job.claimed_at,
        p_job.started_at, v_now, p_status, p_job.priority, p_job.attempts, p_job.max_attempts, p_job.queue,
        p_job.task_id, p_job.task_name, p_job.worker, p_job.dedupe_key, coalesce(p_detail, p_job.last_error),
        p_result_state, p_result);
end
$$;

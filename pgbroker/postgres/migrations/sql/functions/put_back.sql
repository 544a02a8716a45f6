-- Put one claimed job back into its queue, though it may have started (a rejection with requeue, a cold stop).
--   p_delay_seconds  not before so many seconds from now
--   p_reason         for last_error and job_events
--   p_max_requeues   how often a job may be put back before it is buried; null: without limit
-- Returns: the new status, PENDING or DEAD; null if the claim was lost.
create or replace function pgbroker.put_back(
    p_job_id bigint, p_claim bigint, p_delay_seconds double precision, p_reason text, p_max_requeues integer default null)
returns text
language plpgsql as $$
declare
    v_job pgbroker.jobs_live;
    v_reason text;
begin
    select * into v_job from pgbroker.jobs_live j where j.job_id = p_job_id and j.claim = p_claim for update;
    if not found then
        return null;
    end if;
    if v_job.requeues >= p_max_requeues then
        v_reason := format('put back %s times, max_requeues reached; last: %s', v_job.requeues, p_reason);
        perform pgbroker.bury(array[p_job_id], array[p_claim], array[v_reason]);
        perform pgbroker.note_outcome(v_job, 'LOST', v_reason);
        return 'DEAD';
    end if;
    insert into pgbroker.job_events (job_id, task_id, kind, attempts, worker, detail)
    values (p_job_id, v_job.task_id, 'requeued', v_job.attempts, v_job.worker, p_reason);
    update pgbroker.jobs_live j
    set status = 'PENDING', claim = null, worker = null, lease_until = null, claimed_at = null, started_at = null,
        ack_mode = null, requeues = least(j.requeues, 32766) + 1, last_error = coalesce(p_reason, j.last_error),
        run_after = clock_timestamp() + make_interval(secs => coalesce(p_delay_seconds, 0))
    where j.job_id = p_job_id and j.claim = p_claim;
    perform pgbroker.wake(v_job.queue);
    return 'PENDING';
end
$$;

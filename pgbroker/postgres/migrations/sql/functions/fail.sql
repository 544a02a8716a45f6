-- Record a failed attempt, by the holder's name: back to the queue with back-off, or to the dead letters when as many were
-- lost or failed as max_attempts allows.
--   p_backoff_seconds  wait before the next attempt; null: by compute_backoff of the losses so far, this one included
-- Returns: the new status, PENDING or DEAD; null unless worker (and claim, if given) hold the job.
create or replace function pgbroker.fail(
    p_job_id bigint, p_worker text, p_error text, p_backoff_seconds double precision default null, p_claim bigint default null)
returns text
language plpgsql as $$
declare
    v_job pgbroker.jobs_live;
begin
    select * into v_job from pgbroker.jobs_live j
    where j.job_id = p_job_id and j.status = 'RUNNING' and j.worker = p_worker and (p_claim is null or j.claim = p_claim)
    for update;
    if not found then
        return null;
    end if;
    v_job.losses := least(v_job.losses, 32766) + 1;
    if v_job.losses >= v_job.max_attempts then
        update pgbroker.jobs_live j set losses = v_job.losses where j.job_id = v_job.job_id;
        perform pgbroker.bury(array[v_job.job_id], array[v_job.claim], array[p_error]);
        return 'DEAD';
    end if;
    insert into pgbroker.job_events (job_id, task_id, kind, attempts, worker, detail)
    values (v_job.job_id, v_job.task_id, 'failed', v_job.attempts, v_job.worker, p_error);
    update pgbroker.jobs_live j
    set status = 'PENDING', claim = null, worker = null, lease_until = null, claimed_at = null, started_at = null,
        ack_mode = null, losses = v_job.losses, last_error = p_error,
        run_after = clock_timestamp()
            + make_interval(secs => coalesce(p_backoff_seconds, pgbroker.backoff_seconds(v_job.losses)))
    where j.job_id = v_job.job_id;
    perform pgbroker.wake(v_job.queue);
    return 'PENDING';
end
$$;

-- Say of one held job that its worker stops, or has broken it off, after its task began.
--   p_is_early  it was acknowledged before it ran; the row itself may not say so yet
-- Returns: the new status; null if the claim was lost.
--   late ack   PENDING at its old place. This is no loss: max_attempts counts what was lost, not what was deployed
--   early ack  DEAD, "worker stopped after start": never run twice, never silently gone. Celery is told (note_outcome)
--   DONE       where the task had succeeded in the last moment (has_succeeded)
-- Locks: the row, by key.
create or replace function pgbroker.stop_job(p_job_id bigint, p_claim bigint, p_is_early boolean) returns text
language plpgsql as $$
declare
    v_job pgbroker.jobs_live;
    v_reason text;
begin
    select * into v_job from pgbroker.jobs_live j where j.job_id = p_job_id and j.claim = p_claim for update;
    if not found then
        return null;
    end if;
    if pgbroker.has_succeeded(v_job) then
        delete from pgbroker.jobs_live j where j.job_id = p_job_id;
        perform pgbroker.record_history(v_job, 'DONE', 'SUCCESS', null, null);
        return 'DONE';
    end if;
    v_reason := 'worker stopped after start: ' || v_job.worker;
    if p_is_early then
        perform pgbroker.bury(array[p_job_id], array[p_claim], array[v_reason]);
        perform pgbroker.note_outcome(v_job, 'LOST', v_reason);
        return 'DEAD';
    end if;
    insert into pgbroker.job_events (job_id, task_id, kind, attempts, worker, detail)
    values (p_job_id, v_job.task_id, 'stopped', v_job.attempts, v_job.worker, v_reason);
    update pgbroker.jobs_live j
    set status = 'PENDING', claim = null, worker = null, lease_until = null, claimed_at = null, started_at = null,
        ack_mode = null, last_error = v_reason
    where j.job_id = p_job_id;
    perform pgbroker.wake(v_job.queue);
    return 'PENDING';
end
$$;

-- Record that a job was lost on the way, by its claim: the process that ran it died, or was ended at its time limit, and the
-- task shall run again. Back to the queue with back-off, or to the dead letters when max_attempts are lost.
-- Returns: the new status, PENDING or DEAD; null if the claim was lost.
-- Celery leaves the result open when a task shall run again, so at the end it has to be told.
create or replace function pgbroker.lose(p_job_id bigint, p_claim bigint, p_reason text) returns text
language plpgsql as $$
declare
    v_job pgbroker.jobs_live;
    v_reason text;
begin
    select * into v_job from pgbroker.jobs_live j where j.job_id = p_job_id and j.claim = p_claim for update;
    if not found then
        return null;
    end if;
    v_reason := format('%s; loss %s of %s', p_reason, v_job.losses + 1, v_job.max_attempts);
    if pgbroker.fail(p_job_id, v_job.worker, v_reason, null, p_claim) = 'DEAD' then
        perform pgbroker.note_outcome(v_job, 'LOST', v_reason);
        return 'DEAD';
    end if;
    return 'PENDING';
end
$$;

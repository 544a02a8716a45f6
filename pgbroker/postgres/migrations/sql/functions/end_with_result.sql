-- Write the end of a task, and end the job that ran it, in one transaction. A claim that was lost never overwrites an end
-- that was written since; it ends no job.
--   p_task_id, p_status, p_meta, p_seconds   as in put_result(); p_meta null: the task's result is ignored
--   p_job_id, p_claim  the job that runs the task here
--   p_ends_job  false: only the result is written, the job ends by another word (settle, bury ...)
-- May run in a caller's transaction, as put_result().
-- Locks: the job's row, then the result's. Index: primary keys.
create or replace function pgbroker.end_with_result(
    p_task_id text, p_status text, p_meta bytea, p_seconds double precision, p_job_id bigint, p_claim bigint,
    p_ends_job boolean)
returns void
language plpgsql as $$
declare
    v_is_held boolean;
begin
    if p_ends_job then
        v_is_held := pgbroker.settle('{}', '{}', '{}', array[p_job_id], array[p_claim], array[p_status]) = 1;
    else
        perform from pgbroker.jobs_live j where j.job_id = p_job_id and j.claim = p_claim for update;
        v_is_held := found;
    end if;
    if p_meta is not null then
        perform pgbroker.put_result(p_task_id, p_status, p_meta, p_seconds, not v_is_held);
    end if;
end
$$;

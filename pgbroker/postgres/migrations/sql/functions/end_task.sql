-- The end of a task, from the process that ran it: end_with_result() and then the waking of who waits, as store_result().
-- Not for a caller's transaction.
-- Parameters: as end_with_result().
create or replace procedure pgbroker.end_task(
    p_task_id text, p_status text, p_meta bytea, p_seconds double precision, p_job_id bigint, p_claim bigint,
    p_ends_job boolean)
language plpgsql as $$
begin
    perform pgbroker.end_with_result(p_task_id, p_status, p_meta, p_seconds, p_job_id, p_claim, p_ends_job);
    if p_meta is null then
        return;
    end if;
    commit;
    perform set_config('synchronous_commit', 'off', true);
    perform pgbroker.wake_waiters(p_task_id, true);
end
$$;

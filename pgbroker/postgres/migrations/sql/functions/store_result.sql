-- Write the state of a task and wake those who wait for it, in two transactions and one round trip. Not for a caller's
-- transaction: there use put_result(), and wake_waiters() after the commit.
-- Parameters: as put_result().
-- The result is committed before anybody looks for waiters, so no waiter can fall between the two; and NOTIFY, which
-- holds a cluster-wide lock until its commit, does not hold it across the fsync of the result.
create or replace procedure pgbroker.store_result(p_task_id text, p_status text, p_meta bytea, p_seconds double precision)
language plpgsql as $$
declare
    v_is_ready boolean := p_status in ('SUCCESS', 'FAILURE', 'REVOKED');
begin
    if not v_is_ready then
        -- progress on the way may be lost with a crash, the end of a task may not
        perform set_config('synchronous_commit', 'off', true);
    end if;
    perform pgbroker.put_result(p_task_id, p_status, p_meta, p_seconds);
    commit;
    perform set_config('synchronous_commit', 'off', true);
    perform pgbroker.wake_waiters(p_task_id, v_is_ready);
end
$$;

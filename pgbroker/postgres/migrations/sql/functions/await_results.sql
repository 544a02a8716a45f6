-- Register a process for the results of tasks and give back what is there already, in one round trip.
--   p_task_ids, p_every_state  parallel arrays: the tasks, and whether states on the way are wanted too
--   p_channel   the NOTIFY channel that the process listens to (LISTEN comes first)
--   p_seconds   how long the registration holds; whoever still waits then registers again
--   found_*     give null; parallel arrays of what get_results() knows, ended or not, or null for none
-- Two transactions: the look comes after the registration is committed, as store_result() looks for waiters after the
-- result is committed. So one of the two always sees the other, and no wake-up is lost.
create or replace procedure pgbroker.await_results(
    p_task_ids text[], p_every_state boolean[], p_channel text, p_seconds double precision,
    inout found_ids text[], inout found_states text[], inout found_metas bytea[], inout found_details text[])
language plpgsql as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    perform pgbroker.register_waiters(p_task_ids, p_every_state, p_channel, p_seconds);
    commit;
    select array_agg(r.task_id), array_agg(r.status), array_agg(r.meta), array_agg(r.detail)
    into found_ids, found_states, found_metas, found_details
    from pgbroker.get_results(p_task_ids) r;
end
$$;

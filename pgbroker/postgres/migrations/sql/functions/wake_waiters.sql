-- Wake the processes that wait for a task's result, and nobody else.
--   p_is_ready  the task has ended: their registrations are over; else only those that want every state are woken
-- The payload is the task id, or empty if that is long: then a waiter looks for all it waits for.
-- Call it in a transaction after the one that wrote the result: a waiter that registers looks for the result after its
-- registration is committed, so one of the two sees the other.
-- Locks: the task's rows of waiters. Index: primary key.
create or replace function pgbroker.wake_waiters(p_task_id text, p_is_ready boolean) returns void
language plpgsql as $$
declare
    v_payload text := case when octet_length(p_task_id) < 200 then p_task_id else '' end;
    v_channel text;
begin
    if not p_is_ready then
        for v_channel in
            select w.channel from pgbroker.waiters w
            where w.task_id = p_task_id and w.every_state and w.until > clock_timestamp()
        loop
            perform pg_notify(v_channel, v_payload);
        end loop;
        return;
    end if;
    for v_channel in
        with gone as (delete from pgbroker.waiters w where w.task_id = p_task_id returning w.channel, w.until)
        select g.channel from gone g where g.until > clock_timestamp()
    loop
        perform pg_notify(v_channel, v_payload);
    end loop;
end
$$;

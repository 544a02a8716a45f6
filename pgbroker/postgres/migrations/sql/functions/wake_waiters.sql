-- Wake the processes that wait for a task's result, and nobody else.
--   p_is_ready  the task has ended: their registrations are over; else only those that want every state are woken
-- Call it in a transaction after the one that wrote the result: a waiter that registers looks for the result after its
-- registration is committed, so one of the two sees the other.
-- Locks: the task's rows of waiters. Index: primary key.
create or replace function pgbroker.wake_waiters(p_task_id text, p_is_ready boolean) returns void
language plpgsql as $$
declare
    v_channel text;
    v_payload text;
begin
    if not p_is_ready then
        for v_channel, v_payload in
            select w.channel, w.payload from pgbroker.waiters w
            where w.task_id = p_task_id and w.every_state and w.until > clock_timestamp()
        loop
            perform pg_notify(v_channel, v_payload);
        end loop;
        return;
    end if;
    for v_channel, v_payload in
        with gone as (delete from pgbroker.waiters w where w.task_id = p_task_id returning w.channel, w.payload, w.until)
        select g.channel, g.payload from gone g where g.until > clock_timestamp()
    loop
        perform pg_notify(v_channel, v_payload);
    end loop;
end
$$;

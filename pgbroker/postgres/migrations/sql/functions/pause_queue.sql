-- Let no more jobs of a queue be claimed, or let them be claimed again. What workers hold already goes on.
--   p_is_paused  true to pause, false to resume, which wakes all that sleep on the queue
-- Returns: 'changed' or 'unchanged'; 'transient' for a queue that holds no jobs, 'unknown' for one that nobody declared and
--   that holds none.
-- Locks: the queue's row. A claim that has looked at it before may still take its jobs.
create or replace function pgbroker.pause_queue(p_queue text, p_is_paused boolean default true) returns text
language plpgsql as $$
declare
    v_kind text := pgbroker.queue_kind(p_queue);
begin
    if v_kind is null then
        -- jobs may lie in a queue that was never declared: enqueue() only needs its name
        if not exists (select from pgbroker.jobs_live j where j.queue = p_queue)
                and not exists (select from pgbroker.jobs_dead d where d.queue = p_queue) then
            return 'unknown';
        end if;
        v_kind := pgbroker.declare_queue(p_queue);
    end if;
    if v_kind <> 'job' then
        return 'transient';
    end if;
    update pgbroker.queues q set paused_at = case when p_is_paused then clock_timestamp() end
    where q.name = p_queue and (q.paused_at is not null) <> p_is_paused;
    if not found then
        return 'unchanged';
    end if;
    if not p_is_paused then
        perform pg_notify(pgbroker.queue_channel(p_queue), '');
        perform pgbroker.wake(p_queue);
    end if;
    return 'changed';
end
$$;

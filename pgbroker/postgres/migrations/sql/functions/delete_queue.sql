-- Remove a queue with its bindings. Jobs that wait in it end as CANCELLED.
--   p_if_unused, p_if_empty  only if nobody consumes from it / nothing waits in it
-- Returns: how many messages were taken out; -1 if a condition did not hold.
create or replace function pgbroker.delete_queue(
    p_queue text, p_if_unused boolean default false, p_if_empty boolean default false) returns bigint
language plpgsql as $$
declare
    v_count bigint;
begin
    if p_if_unused and exists (select from pgbroker.consumers c where c.queue = p_queue and c.lives_until > clock_timestamp()) then
        return -1;
    end if;
    if p_if_empty and (exists (select from pgbroker.jobs_live j where j.queue = p_queue and j.status = 'PENDING')
            or exists (select from pgbroker.mailbox m where m.queue = p_queue)) then
        return -1;
    end if;
    v_count := pgbroker.purge_queue(p_queue);
    perform pgbroker.drop_bindings(p_queue);
    delete from pgbroker.transient_queues where name = p_queue;
    delete from pgbroker.queues where name = p_queue;
    return v_count;
end
$$;

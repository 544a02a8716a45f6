-- What a queue's messages are: 'job', 'transient', or null for an unknown queue.
create or replace function pgbroker.queue_kind(p_queue text) returns text
language sql stable as $$
    select case
        when exists (select from pgbroker.transient_queues where name = p_queue) then 'transient'
        when exists (select from pgbroker.queues where name = p_queue) then 'job' end
$$;

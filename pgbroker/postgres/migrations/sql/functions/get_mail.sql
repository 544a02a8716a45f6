-- Read one transient message and delete it, for a basic.get: that counts as use of a queue with x-expires.
-- Returns: the message, or no row. Locks: the row, and that of the queue.
create or replace function pgbroker.get_mail(p_queue text) returns setof pgbroker.mailbox
language plpgsql rows 1 as $$
begin
    update pgbroker.transient_queues q
    set lives_until = greatest(q.lives_until, clock_timestamp() + make_interval(secs => q.expires_seconds))
    where q.name = p_queue and q.expires_seconds is not null;
    return query select * from pgbroker.fetch_mail(array[p_queue], 1);
end
$$;

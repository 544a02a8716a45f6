-- Read transient messages and delete them.
--   p_want  how many at most
-- Returns: the messages, in no order. Locks: the rows read, skipping those that another consumer reads.
create or replace function pgbroker.fetch_mail(p_queues text[], p_want integer) returns setof pgbroker.mailbox
language plpgsql rows 4 as $$
declare
    v_now timestamptz := clock_timestamp();
    v_ids bigint[];
begin
    perform set_config('synchronous_commit', 'off', true);
    v_ids := array(
        select m.message_id from pgbroker.mailbox m
        where m.queue = any (p_queues) and (m.expires_at is null or m.expires_at > v_now)
        order by m.message_id limit p_want for update skip locked);
    if v_ids <> '{}' then
        return query delete from pgbroker.mailbox m where m.message_id = any (v_ids) returning m.*;
    end if;
end
$$;

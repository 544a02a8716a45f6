-- Send expired transient messages on, where their queue names a dead letter exchange. All others just vanish (see
-- sweep_transient), so nobody needs to be in a hurry about them.
--   p_limit  how many messages at most
-- Returns: when the next of these messages expires; null: none does.
-- Locks: the expired rows, skipping those that somebody reads. Index: transient_queues_dead_letter, then mailbox_queue.
create or replace function pgbroker.expire_mail(p_limit integer default 100) returns timestamptz
language plpgsql as $$
declare
    v_now timestamptz := clock_timestamp();
    v_queues text[];
    v_ids bigint[];
    v_mail pgbroker.mailbox;
begin
    v_queues := array(select q.name from pgbroker.transient_queues q where q.dead_letter_exchange is not null);
    if v_queues = '{}' then
        return null;
    end if;
    v_ids := array(
        select m.message_id from pgbroker.mailbox m where m.queue = any (v_queues) and m.expires_at <= v_now
        order by m.message_id limit p_limit for update skip locked);
    for v_mail in delete from pgbroker.mailbox m where m.message_id = any (v_ids) returning m.* loop
        perform pgbroker.dead_letter_mail(v_mail, 'expired');
    end loop;
    return (select min(m.expires_at) from pgbroker.mailbox m where m.queue = any (v_queues));
end
$$;

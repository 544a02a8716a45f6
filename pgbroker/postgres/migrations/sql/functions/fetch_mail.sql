-- Read transient messages and delete them.
--   p_queues  in the order in which they are looked at
--   p_want    how many at most
-- Returns: the messages, in no order; of each queue those of the highest priorities, the oldest of them first.
-- Locks: the rows read, skipping those that another consumer reads. Index: mailbox_queue, queue by queue, so that no
-- backlog is sorted.
create or replace function pgbroker.fetch_mail(p_queues text[], p_want integer) returns setof pgbroker.mailbox
language plpgsql rows 4 set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
    v_now timestamptz := clock_timestamp();
    v_ids bigint[] := '{}';
    v_queue text;
begin
    perform set_config('synchronous_commit', 'off', true);
    foreach v_queue in array p_queues loop
        exit when cardinality(v_ids) >= p_want;
        v_ids := v_ids || array(
            select m.message_id from pgbroker.mailbox m
            where m.queue = v_queue and (m.expires_at is null or m.expires_at > v_now)
            order by m.priority desc, m.message_id limit p_want - cardinality(v_ids) for update skip locked);
    end loop;
    if v_ids <> '{}' then
        return query delete from pgbroker.mailbox m where m.message_id = any (v_ids) returning m.*;
    end if;
end
$$;

-- Take outcomes that Celery must be told of, the oldest first. Whoever takes them calls drop_outcomes() afterwards; what is
-- not dropped comes back, so that nothing is lost with a worker that dies over it.
--   p_limit    how many at most
--   p_seconds  when an outcome comes back, doubled with each delivery up to 64 times that
-- Returns: the rows, deliveries counting this one, in no order.
-- Locks: the rows, skipping those that another worker is taking. Index: primary key.
create or replace function pgbroker.take_outcomes(p_limit integer, p_seconds double precision)
returns setof pgbroker.outcome_outbox
language plpgsql rows 10 set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
    v_now timestamptz := clock_timestamp();
    v_ids bigint[];
begin
    v_ids := array(
        select o.outcome_id from pgbroker.outcome_outbox o where o.taken_until is null or o.taken_until <= v_now
        order by o.outcome_id limit p_limit for update skip locked);
    if v_ids = '{}' then
        return;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    return query
        update pgbroker.outcome_outbox o
        set taken_until = v_now + make_interval(secs => p_seconds * 2 ^ least(o.deliveries, 6)),
            deliveries = least(o.deliveries, 32766) + 1
        where o.outcome_id = any (v_ids)
        returning o.*;
end
$$;

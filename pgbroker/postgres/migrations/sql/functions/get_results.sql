-- The stored states of several tasks; one that has expired is not there. In no order.
-- Index: primary key.
create or replace function pgbroker.get_results(p_task_ids text[])
returns table (task_id text, status text, meta bytea)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
begin
    return query
    select r.task_id, r.status, r.meta from pgbroker.results r
    where r.task_id = any (p_task_ids) and (r.expires_at is null or r.expires_at > clock_timestamp());
end
$$;

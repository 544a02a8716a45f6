-- Remember which results make up a group.
--   p_meta     the group as Celery describes it, encoded by the application's result serializer
--   p_seconds  how long it is kept, by the server's clock; null or 0: for ever
-- Locks: the row. Index: primary key.
create or replace function pgbroker.put_result_group(p_group_id text, p_meta bytea, p_seconds double precision) returns void
language plpgsql as $$
begin
    insert into pgbroker.result_groups (group_id, meta, expires_at)
    values (p_group_id, p_meta, clock_timestamp() + make_interval(secs => nullif(p_seconds, 0)))
    on conflict (group_id) do update set meta = excluded.meta, expires_at = excluded.expires_at;
end
$$;

-- Let no run of these tasks begin any more: what waits ends here as CANCELLED, what is published later or comes back to its
-- queue ends there (publish) or when a worker is about to get it (claim). Running ones go on.
--   p_seconds  how long this holds for what is not waiting now; null: revoked_seconds of settings
-- Returns: how many waiting jobs were ended.
-- Locks: the rows of revoked in the order of their ids, then those of the jobs. Index: jobs_live_task.
create or replace function pgbroker.revoke(p_task_ids text[], p_seconds double precision default null) returns integer
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_seconds double precision := coalesce(
        p_seconds, (select s.value::double precision from pgbroker.settings s where s.name = 'revoked_seconds'), 10800);
    v_ids bigint[];
    v_count integer;
begin
    insert into pgbroker.revoked as r (task_id, until)
    select distinct i.id, clock_timestamp() + make_interval(secs => v_seconds)
    from unnest(p_task_ids) i (id) where i.id is not null
    order by i.id
    on conflict (task_id) do update set until = greatest(r.until, excluded.until);
    v_ids := array(
        select j.job_id from pgbroker.jobs_live j where j.task_id = any (p_task_ids) and j.status = 'PENDING'
        order by j.job_id);
    select count(pgbroker.cancel(i, 'REVOKED', 'revoked')) into v_count from unnest(v_ids) i;
    return v_count;
end
$$;

-- Delete dead letters that were buried more than dead_seconds (of settings) ago, with their events.
--   p_limit  how many at most; call it until it returns less
-- Returns: how many went away; null while another process prunes (advisory lock of this transaction).
-- Ids are given at publish, so the walk along the primary key ends where jobs are too young to have been buried that long
-- ago (an hour is left for a publish that took its id early): what is kept is not read, and no index on buried_at needed.
-- Locks: the deleted rows, skipping one that is being requeued. Indexes: primary key of jobs_dead, job_events_job.
create or replace function pgbroker.prune_dead(p_limit integer default 1000) returns integer
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
    v_before timestamptz := clock_timestamp() - make_interval(secs => coalesce(
        (select s.value::double precision from pgbroker.settings s where s.name = 'dead_seconds'), 2592000));
    v_job record;
    v_ids bigint[] := '{}';
begin
    if not pg_try_advisory_xact_lock(hashtextextended('pgbroker.prune', 0)) then
        return null;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    for v_job in select d.job_id, d.enqueued_at, d.buried_at from pgbroker.jobs_dead d order by d.job_id loop
        exit when v_job.enqueued_at > v_before + interval '1 hour' or cardinality(v_ids) >= p_limit;
        if v_job.buried_at <= v_before then
            v_ids := v_ids || v_job.job_id;
        end if;
    end loop;
    v_ids := array(select d.job_id from pgbroker.jobs_dead d where d.job_id = any (v_ids) for update skip locked);
    delete from pgbroker.job_events e where e.job_id = any (v_ids);
    delete from pgbroker.jobs_dead d where d.job_id = any (v_ids);
    return cardinality(v_ids);
end
$$;

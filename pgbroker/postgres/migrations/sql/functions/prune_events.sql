-- Delete events of jobs that nobody can see any more: older than history_seconds, and their job is neither live nor dead
-- nor visible in history.
--   p_after  the last_id of the call before; 0 to begin
--   p_limit  how many events are looked at
-- Returns: how many went away, and the last event that was looked at; last_id is null after the last one, and while
--   another process prunes (advisory lock of this transaction; pruned is then null too).
-- Indexes: primary keys of job_events, jobs_live and jobs_dead; job_history_job, of each day.
create or replace function pgbroker.prune_events(
    p_after bigint default 0, p_limit integer default 1000, out pruned integer, out last_id bigint)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
    v_before timestamptz := clock_timestamp() - make_interval(secs => pgbroker.history_seconds());
    v_ids bigint[];
begin
    if not pg_try_advisory_xact_lock(hashtextextended('pgbroker.prune', 0)) then
        return;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    v_ids := array(
        select e.event_id from pgbroker.job_events e
        where e.event_id > p_after and e.happened_at <= v_before order by e.event_id limit p_limit);
    delete from pgbroker.job_events e
    where e.event_id = any (v_ids)
        and not exists (select from pgbroker.jobs_live j where j.job_id = e.job_id)
        and not exists (select from pgbroker.jobs_dead d where d.job_id = e.job_id)
        and not exists (select from pgbroker.job_history h where h.job_id = e.job_id and h.finished_at > v_before);
    get diagnostics pruned = row_count;
    if cardinality(v_ids) = p_limit then
        last_id := v_ids[p_limit];
    end if;
end
$$;

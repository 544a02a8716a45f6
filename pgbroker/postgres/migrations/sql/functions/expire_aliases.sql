-- Delete aliases that lead to nothing any more: a day old at least, and there is neither a job (live or dead) nor a result
-- nor an undelivered outcome of the task that they lead to. Others are looked at again when that task's result expires,
-- or else in a day. So an alias is kept as long as the result is, however long that may be. A batch at most.
-- Returns: how many were looked at, and how many of these are gone. Call it until it looks at less than p_limit.
-- Locks: the rows, skipping those that somebody else is looking at. Index: aliases_check; jobs_live_task, jobs_dead_task,
-- outcome_outbox_task, primary keys of results and aliases.
create or replace function pgbroker.expire_aliases(p_limit integer, out looked_at integer, out deleted integer)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
    v_now timestamptz := clock_timestamp();
    v_alias pgbroker.aliases;
    v_check_at timestamptz;
begin
    looked_at := 0;
    deleted := 0;
    for v_alias in
        select * from pgbroker.aliases a where a.check_at <= v_now order by a.check_at limit p_limit for update skip locked
    loop
        looked_at := looked_at + 1;
        select coalesce(r.expires_at, v_now + interval '1 day') into v_check_at from pgbroker.results r
        where r.task_id = v_alias.leads_to and (r.expires_at is null or r.expires_at > v_now);
        if found then
            null;
        elsif exists (select from pgbroker.jobs j where j.task_id = v_alias.leads_to)
            or exists (select from pgbroker.outcome_outbox o where o.task_id = v_alias.leads_to)
            or exists (select from pgbroker.aliases a where a.task_id = v_alias.leads_to and a.leads_to <> v_alias.task_id)
        then
            v_check_at := v_now + interval '1 day';
        else
            delete from pgbroker.aliases a where a.task_id = v_alias.task_id and a.alias_id = v_alias.alias_id;
            deleted := deleted + 1;
            continue;
        end if;
        update pgbroker.aliases a set check_at = v_check_at
        where a.task_id = v_alias.task_id and a.alias_id = v_alias.alias_id;
    end loop;
end
$$;

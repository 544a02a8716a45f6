-- The states of several tasks; one that has expired is not there. In no order.
-- An end that the broker made and no worker has delivered yet (outcome_outbox) counts: it comes without meta, and detail says
-- why it ended.
-- An id that is an alias has the state of the task that it leads to, under the id that was asked for.
--   p_follow  false: the states stored under these very ids
-- Index: primary keys of results and aliases, outcome_outbox_task.
create or replace function pgbroker.get_results(p_task_ids text[], p_follow boolean default true)
returns table (task_id text, status text, meta bytea, detail text)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
begin
    if p_follow and exists (select from pgbroker.aliases a where a.task_id = any (p_task_ids)) then
        return query
        with led as materialized (
            select i.id, case when exists (select from pgbroker.aliases a where a.task_id = i.id)
                then pgbroker.follow_alias(i.id) else array[i.id] end as way
            from unnest(p_task_ids) i (id) group by i.id)
        select l.id, g.status, g.meta, g.detail
        from led l
        join pgbroker.get_results(array(select distinct l.way[cardinality(l.way)] from led l), false) g
            on g.task_id = l.way[cardinality(l.way)];
        return;
    end if;
    return query
    select r.task_id, r.status, r.meta, null::text from pgbroker.results r
    where r.task_id = any (p_task_ids) and (r.expires_at is null or r.expires_at > clock_timestamp())
        and (r.status in ('SUCCESS', 'FAILURE', 'REVOKED')
            or not exists (select from pgbroker.outcome_outbox o where o.task_id = r.task_id));
    return query
    select distinct on (o.task_id) o.task_id, case o.outcome when 'LOST' then 'FAILURE' else 'REVOKED' end, null::bytea, o.detail
    from pgbroker.outcome_outbox o
    where o.task_id = any (p_task_ids)
        and not exists (
            select from pgbroker.results r
            where r.task_id = o.task_id and r.status in ('SUCCESS', 'FAILURE', 'REVOKED')
                and (r.expires_at is null or r.expires_at > clock_timestamp()))
    order by o.task_id, o.outcome_id desc;
end
$$;

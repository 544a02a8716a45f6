-- The way from a task id to the task whose result it has: the id itself, then what it leads to. The last one counts.
-- An id leads no further if it has a result of its own, or a live job that was published after it became an alias.
-- Index: primary keys of aliases and results, outcome_outbox_task, jobs_live_task.
create or replace function pgbroker.follow_alias(p_task_id text) returns text[]
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_id text := p_task_id;
    v_way text[] := array[p_task_id];
begin
    loop
        exit when exists (
                select from pgbroker.results r
                where r.task_id = v_id and r.status in ('SUCCESS', 'FAILURE', 'REVOKED')
                    and (r.expires_at is null or r.expires_at > clock_timestamp()))
            or exists (select from pgbroker.outcome_outbox o where o.task_id = v_id);
        select a.leads_to into v_id from pgbroker.aliases a
        where a.task_id = v_id
            and not exists (select from pgbroker.jobs_live j where j.task_id = a.task_id and j.job_id > a.alias_id)
        order by a.alias_id desc limit 1;
        exit when not found or v_id = any (v_way);
        v_way := v_way || v_id;
    end loop;
    return v_way;
end
$$;

-- Let a task id, of which there will be no job, lead to the result of a live job's task.
-- Who waits for that id already is told to register again, with an empty payload (see register_waiters). That reaches
-- whoever registered before this statement; who does so before its commit looks again after poll_interval.
-- May run in a caller's transaction: it only adds a row, for which nobody else ever waits.
-- Index: primary keys of aliases and waiters.
create or replace function pgbroker.add_alias(p_task_id text, p_leads_to text) returns void
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_before text;
begin
    if p_leads_to is null or p_task_id is null or p_task_id = p_leads_to then
        return;
    end if;
    select a.leads_to into v_before from pgbroker.aliases a where a.task_id = p_task_id order by a.alias_id desc limit 1;
    if v_before is distinct from p_leads_to then
        insert into pgbroker.aliases (task_id, leads_to, check_at)
        values (p_task_id, p_leads_to, clock_timestamp() + interval '1 day');
    end if;
    perform pg_notify(w.channel, '') from pgbroker.waiters w where w.task_id = p_task_id and w.until > clock_timestamp();
end
$$;

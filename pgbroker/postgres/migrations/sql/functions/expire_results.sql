-- Delete results and groups whose time is over, a batch of each at most. Call it until it returns 0.
-- Returns: how many rows went away.
-- Locks: the expired rows, skipping those that somebody else is deleting or writing.
-- Indexes: results_expiry, result_groups_expiry.
create or replace function pgbroker.expire_results(p_limit integer) returns integer
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
    v_now timestamptz := clock_timestamp();
    v_ids text[];
    v_results integer;
    v_groups integer;
begin
    v_ids := array(select r.task_id from pgbroker.results r where r.expires_at <= v_now
        order by r.expires_at limit p_limit for update skip locked);
    delete from pgbroker.results r where r.task_id = any (v_ids);
    get diagnostics v_results = row_count;
    v_ids := array(select g.group_id from pgbroker.result_groups g where g.expires_at <= v_now
        order by g.expires_at limit p_limit for update skip locked);
    delete from pgbroker.result_groups g where g.group_id = any (v_ids);
    get diagnostics v_groups = row_count;
    return v_results + v_groups;
end
$$;

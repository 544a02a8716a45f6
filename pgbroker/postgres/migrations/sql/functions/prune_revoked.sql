-- Forget revocations whose time is over, and outcomes that no worker came to deliver for a week.
-- Returns: how many rows went away.
create or replace function pgbroker.prune_revoked() returns integer
language plpgsql as $$
declare
    v_revoked integer;
    v_stamps integer;
    v_outcomes integer;
begin
    perform set_config('synchronous_commit', 'off', true);
    delete from pgbroker.revoked r where r.task_id in (
        select o.task_id from pgbroker.revoked o where o.until <= clock_timestamp() for update skip locked);
    get diagnostics v_revoked = row_count;
    delete from pgbroker.revoked_stamps r where r.ctid = any (array(
        select o.ctid from pgbroker.revoked_stamps o where o.until <= clock_timestamp() for update skip locked));
    get diagnostics v_stamps = row_count;
    delete from pgbroker.outcome_outbox d where d.outcome_id in (
        select o.outcome_id from pgbroker.outcome_outbox o where o.created_at < clock_timestamp() - interval '7 days'
        order by o.outcome_id limit 1000 for update skip locked);
    get diagnostics v_outcomes = row_count;
    return v_revoked + v_stamps + v_outcomes;
end
$$;

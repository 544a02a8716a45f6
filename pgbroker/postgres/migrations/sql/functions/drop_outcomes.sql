-- Forget outcomes that Celery has been told of.
-- Returns: how many there were. Commits asynchronously: losing this in a crash only has them told once more.
create or replace function pgbroker.drop_outcomes(p_ids bigint[]) returns integer
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_count integer;
begin
    perform set_config('synchronous_commit', 'off', true);
    delete from pgbroker.outcome_outbox o where o.outcome_id = any (p_ids);
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

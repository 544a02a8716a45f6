-- A worker's whole conversation in one round trip and one commit: settle what it has to say, claim what it has room for.
-- Parameters: those of settle() and of claim().
-- Returns: the claimed rows, in no order.
-- A call that only claims commits asynchronously: losing a claim in a server crash only hands the job out again. Settles
-- are waited for: a lost one would run a finished task again, or report a finished one as lost.
create or replace function pgbroker.exchange(
    p_started_ids bigint[], p_started bigint[], p_started_early boolean[],
    p_done_ids bigint[], p_done bigint[], p_done_states text[],
    p_worker text, p_queues text[], p_want integer, p_lease_seconds double precision, p_reports_start boolean,
    p_floors timestamptz[] default null, p_low_first boolean default false)
returns setof pgbroker.jobs_live
language plpgsql rows 16 as $$
begin
    if cardinality(p_started) > 0 or cardinality(p_done) > 0 then
        perform pgbroker.settle(p_started_ids, p_started, p_started_early, p_done_ids, p_done, p_done_states);
    else
        perform set_config('synchronous_commit', 'off', true);
    end if;
    if p_want > 0 then
        return query select * from pgbroker.claim(
            p_worker, p_queues, p_want, p_lease_seconds, p_reports_start, p_floors, p_low_first);
    end if;
end
$$;

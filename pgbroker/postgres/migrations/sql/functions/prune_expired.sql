-- End jobs that expired before anybody claimed them, as CANCELLED, the longest expired first.
--   p_limit  how many jobs at most; call it until it returns less
-- Returns: how many ended; null while another process prunes (advisory lock of this transaction).
-- Locks: the expired rows, skipping those that somebody else is claiming or ending. Index: jobs_live_expiry.
create or replace function pgbroker.prune_expired(p_limit integer default 1000) returns integer
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
    v_now timestamptz := clock_timestamp();
    v_ids bigint[];
begin
    if not pg_try_advisory_xact_lock(hashtextextended('pgbroker.prune', 0)) then
        return null;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    v_ids := array(
        select j.job_id from pgbroker.jobs_live j
        where j.status = 'PENDING' and j.expires_at is not null and j.expires_at <= v_now
        order by j.expires_at limit p_limit for update skip locked);
    perform pgbroker.cancel(i, 'EXPIRED', 'expired before it was claimed') from unnest(v_ids) i;
    return cardinality(v_ids);
end
$$;

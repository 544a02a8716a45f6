-- How long until a job of these queues can be claimed.
--   p_queues   paused ones do not count
--   p_seconds  how far to look ahead
-- Returns: 0 if one is ready now, seconds until the next becomes due, or null if none does within p_seconds.
-- Locks: nothing. Index: jobs_live_ready, one probe for each queue and lane.
create or replace function pgbroker.ready_in(p_queues text[], p_seconds double precision) returns double precision
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
    v_now timestamptz := clock_timestamp();
    v_until timestamptz := v_now + make_interval(secs => p_seconds);
    v_next timestamptz;
    v_due timestamptz;
    v_queue text;
    v_lane smallint;
begin
    foreach v_queue in array p_queues loop
        continue when exists (select from pgbroker.queues where name = v_queue and paused_at is not null);
        for v_lane in reverse 9..0 loop
            select j.run_after into v_due from pgbroker.jobs_live j
            where j.queue = v_queue and j.priority = v_lane and j.status = 'PENDING' and j.run_after <= v_until
                and (j.expires_at is null or j.expires_at > greatest(v_now, j.run_after))
            order by j.run_after limit 1;
            if v_due <= v_now then
                return 0;
            end if;
            if v_due < coalesce(v_next, 'infinity') then
                v_next := v_due;
            end if;
        end loop;
    end loop;
    return extract(epoch from v_next - v_now);
end
$$;

-- Register a worker that found nothing, so that the next publish wakes it. Whoever dozes must claim once more
-- afterwards: what was committed in between woke nobody.
--   p_queues   the queues it serves
--   p_channel  the NOTIFY channel it listens to
--   p_seconds  how long the registration holds; a worker that is still idle then registers again
-- Returns: seconds until the next job of these queues becomes due, if that is within p_seconds, else null.
-- Index: jobs_live_ready, one probe for each queue and lane.
create or replace function pgbroker.doze(p_queues text[], p_channel text, p_seconds double precision)
returns double precision
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
    v_now timestamptz := clock_timestamp();
    v_until timestamptz := v_now + make_interval(secs => p_seconds);
    v_next timestamptz;
    v_due timestamptz;
    v_queue text;
    v_lane smallint;
begin
    perform set_config('synchronous_commit', 'off', true);
    foreach v_queue in array p_queues loop
        insert into pgbroker.sleepers (queue, channel, until) values (v_queue, p_channel, v_until)
        on conflict (channel, queue) do update
            set until = excluded.until, sleeper_id = nextval('pgbroker.sleeper_id_seq');
        for v_lane in reverse 9..0 loop
            select j.run_after into v_due from pgbroker.jobs_live j
            where j.queue = v_queue and j.priority = v_lane and j.status = 'PENDING'
                and j.run_after > v_now and j.run_after <= v_until
            order by j.run_after limit 1;
            if v_due < coalesce(v_next, 'infinity') then
                v_next := v_due;
            end if;
        end loop;
    end loop;
    return extract(epoch from v_next - v_now);
end
$$;

-- Register a worker that found nothing, so that the next publish wakes it, and look once more.
--   p_queues   the queues it serves
--   p_channel  the NOTIFY channel it listens to; null: only look, nothing is registered
--   p_seconds  how long the registration holds; a worker that is still idle then registers again
-- Returns: due_seconds, the time until the next job of these queues becomes due, if that is within p_seconds, else null;
--   is_ready and has_mail, whether there is a ready job or a transient message now.
-- Jobs that have expired are ended on the way, a batch of them, and so are transient messages that go on to a dead letter
-- exchange: whoever has nothing to do is there to do it, and due_seconds (never less than a second for this) leads back to
-- the next one.
-- What another session commits between this look and this commit woke nobody: look again a moment later (the second
-- call meets a registration that is already visible, so nothing can slip through any more).
-- Index: jobs_live_ready, one probe for each queue and lane.
create or replace function pgbroker.doze(
    p_queues text[], p_channel text, p_seconds double precision,
    out due_seconds double precision, out is_ready boolean, out has_mail boolean)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
    set plan_cache_mode = force_generic_plan as $$
declare
    v_now timestamptz := clock_timestamp();
    v_until timestamptz := v_now + make_interval(secs => p_seconds);
    v_next timestamptz;
    v_due timestamptz;
    v_queue text;
    v_lane smallint;
begin
    perform set_config('synchronous_commit', 'off', true);
    is_ready := false;
    foreach v_queue in array p_queues loop
        if p_channel is not null then
            insert into pgbroker.sleepers (queue, channel, until) values (v_queue, p_channel, v_until)
            on conflict (channel, queue) do update
                set until = excluded.until, sleeper_id = nextval('pgbroker.sleeper_id_seq');
        end if;
        continue when exists (select from pgbroker.queues where name = v_queue and paused_at is not null);
        for v_lane in reverse 9..0 loop
            is_ready := is_ready or exists (
                select from pgbroker.jobs_live j
                where j.queue = v_queue and j.priority = v_lane and j.status = 'PENDING' and j.run_after <= v_now
                    and (j.expires_at is null or j.expires_at > v_now)
                order by j.run_after limit 1);
            select j.run_after into v_due from pgbroker.jobs_live j
            where j.queue = v_queue and j.priority = v_lane and j.status = 'PENDING'
                and j.run_after > v_now and j.run_after <= v_until
            order by j.run_after limit 1;
            v_next := least(v_next, v_due);
        end loop;
    end loop;
    select j.expires_at into v_due from pgbroker.jobs_live j
    where j.status = 'PENDING' and j.expires_at is not null and j.expires_at <= v_until
    order by j.expires_at limit 1;
    if v_due <= v_now then
        perform pgbroker.prune_expired(100);
    end if;
    if v_due is not null then
        v_next := least(v_next, greatest(v_due, v_now + interval '1 second'));
    end if;
    if exists (select from pgbroker.transient_queues q where q.dead_letter_exchange is not null) then
        v_due := pgbroker.expire_mail();
        v_next := least(v_next, case when v_due <= v_until then greatest(v_due, v_now + interval '1 second') end);
    end if;
    due_seconds := extract(epoch from v_next - v_now);
    has_mail := exists (
        select from pgbroker.mailbox m where m.queue = any (p_queues) and (m.expires_at is null or m.expires_at > v_now));
end
$$;

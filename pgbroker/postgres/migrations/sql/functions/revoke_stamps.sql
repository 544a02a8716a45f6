-- Let no run of tasks that bear one of these stamps begin any more: what is published later or comes back to its queue ends
-- there, as with revoke(); what waits is ended by cancel_stamped(). Running ones go on.
--   p_headers, p_values  parallel arrays: name of a stamped header, and a value as JSON text
--   p_seconds            how long this holds; null: revoked_seconds of settings
-- Returns: the newest job there is now: as far as cancel_stamped() has to go. Null if there is none.
-- Locks: the rows of revoked_stamps in the order of their keys.
create or replace function pgbroker.revoke_stamps(
    p_headers text[], p_values text[], p_seconds double precision default null) returns bigint
language plpgsql as $$
declare
    v_now timestamptz := clock_timestamp();
    v_seconds double precision := coalesce(
        p_seconds, (select s.value::double precision from pgbroker.settings s where s.name = 'revoked_seconds'), 10800);
begin
    insert into pgbroker.revoked_stamps as r (header, value, revoked_at, until)
    select distinct s.header, s.value::jsonb, v_now, v_now + make_interval(secs => v_seconds)
    from unnest(p_headers, p_values) s (header, value)
    order by s.header, s.value::jsonb
    on conflict (header, md5(value::text)) do update
        set revoked_at = excluded.revoked_at, until = greatest(r.until, excluded.until);
    return (select max(j.job_id) from pgbroker.jobs_live j);
end
$$;

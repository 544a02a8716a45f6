-- One more member joins a chord that runs.
--   p_seconds  as in open_chord()
-- Locks: the chord's row. Index: primary key.
create or replace function pgbroker.add_to_chord(p_group_id text, p_seconds double precision) returns void
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
begin
    insert into pgbroker.chords as c (group_id, added, expires_at)
    values (p_group_id, 1, clock_timestamp() + make_interval(secs => nullif(p_seconds, 0)))
    on conflict (group_id) do update set added = c.added + 1 where c.finished_at is null;
end
$$;

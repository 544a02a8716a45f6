-- Say how many members a chord has. One that has ended begins anew (see open_chord).
--   p_seconds  as in open_chord()
-- Returns: whether all of them have returned already; then the caller has to finish the chord.
-- Locks: the chord's row. Index: primary key.
create or replace function pgbroker.set_chord_size(p_group_id text, p_size integer, p_seconds double precision)
returns boolean
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_chord pgbroker.chords;
begin
    insert into pgbroker.chords as c (group_id, size, expires_at)
    values (p_group_id, p_size, clock_timestamp() + make_interval(secs => nullif(p_seconds, 0)))
    on conflict (group_id) do update
        set size = excluded.size,
            added = case when c.finished_at is null then c.added else 0 end,
            returned = case when c.finished_at is null then c.returned else 0 end,
            expires_at = excluded.expires_at, finished_at = null
    returning * into v_chord;
    return v_chord.returned > 0 and v_chord.returned >= v_chord.size + v_chord.added;
end
$$;

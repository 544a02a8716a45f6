-- Make a chord known before its members are published. One that has ended begins anew: a frozen chord that is applied again
-- has the same id.
--   p_structure  how the header's results are nested; null: they are not
--   p_body       the chord's body
--   p_seconds    how long it is kept after its last part; null or 0: for ever
-- Locks: the chord's row. Index: primary keys.
create or replace function pgbroker.open_chord(
    p_group_id text, p_structure bytea, p_body bytea, p_seconds double precision)
returns void
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    insert into pgbroker.chords as c (group_id, structure, body, expires_at)
    values (p_group_id, p_structure, p_body, v_now + make_interval(secs => nullif(p_seconds, 0)))
    on conflict (group_id) do update
        set size = case when c.finished_at is null then c.size end,
            added = case when c.finished_at is null then c.added else 0 end,
            returned = case when c.finished_at is null then c.returned else 0 end,
            structure = excluded.structure, body = excluded.body, expires_at = excluded.expires_at, finished_at = null;
end
$$;

-- Delete chords that have expired: those that ended, and those whose parts have stopped coming.
--   p_limit  how many at most; call it until it returns 0
-- Returns: how many were deleted.
-- Locks: the rows, skipping those in use. Index: chords_expiry, primary key of chord_parts.
create or replace function pgbroker.expire_chords(p_limit integer) returns integer
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
    v_now timestamptz := clock_timestamp();
    v_ids text[];
begin
    v_ids := array(select c.group_id from pgbroker.chords c where c.expires_at <= v_now
        order by c.expires_at limit p_limit for update skip locked);
    delete from pgbroker.chord_parts p where p.group_id = any (v_ids);
    delete from pgbroker.chords c where c.group_id = any (v_ids);
    return cardinality(v_ids);
end
$$;

-- End a chord whose last part is here, in the transaction that publishes its body.
--   p_task_id, p_position  the member that completes it; p_task_id null: all parts are kept (the size came last)
-- Returns: whether it ends here; false if it has ended before, or other parts are missing by now (add_to_chord).
-- The row stays for an hour, so that a member which runs once more finds that it is over.
-- Locks: the chord's row and its parts. Index: primary keys.
create or replace function pgbroker.finish_chord(p_group_id text, p_task_id text, p_position integer) returns boolean
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_chord pgbroker.chords;
    v_now timestamptz := clock_timestamp();
begin
    select * into v_chord from pgbroker.chords c where c.group_id = p_group_id for update;
    if v_chord.group_id is null or v_chord.finished_at is not null then
        return false;
    end if;
    if p_task_id is not null and not exists (
        select from pgbroker.chord_parts p
        where p.group_id = p_group_id and p.task_id = p_task_id and p.position = coalesce(p_position, 2147483647))
    then
        v_chord.returned := v_chord.returned + 1;
    end if;
    if v_chord.size is null or v_chord.returned < v_chord.size + v_chord.added then
        return false;
    end if;
    delete from pgbroker.chord_parts p where p.group_id = p_group_id;
    update pgbroker.chords c
    set finished_at = v_now, returned = v_chord.returned, expires_at = v_now + interval '1 hour', structure = null,
        body = null
    where c.group_id = p_group_id;
    return true;
end
$$;

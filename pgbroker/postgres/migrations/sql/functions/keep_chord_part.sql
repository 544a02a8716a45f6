-- Keep what a member of a chord returned, unless that completes the chord: the last part has to come together with the body
-- (finish_chord), so that none of the two can be without the other.
--   p_position  the member's place in the header; null: after all that have one
--   p_part      what it returned, encoded
--   p_seconds   as in open_chord()
-- Returns: KEPT; OVER, if the chord has ended; COMPLETES, and then nothing was written.
-- A member that returned before is not kept again.
-- Locks: the chord's row, until the end of the transaction. Index: primary keys.
create or replace function pgbroker.keep_chord_part(
    p_group_id text, p_task_id text, p_position integer, p_part bytea, p_seconds double precision)
returns text
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_now timestamptz := clock_timestamp();
    v_expires_at timestamptz := v_now + make_interval(secs => nullif(p_seconds, 0));
    v_position integer := coalesce(p_position, 2147483647);
    v_chord pgbroker.chords;
    v_is_new boolean;
begin
    select * into v_chord from pgbroker.chords c where c.group_id = p_group_id for update;
    if not found then
        insert into pgbroker.chords (group_id, expires_at) values (p_group_id, v_expires_at) on conflict do nothing;
        select * into v_chord from pgbroker.chords c where c.group_id = p_group_id for update;
    end if;
    if v_chord.finished_at is not null then
        return 'OVER';
    end if;
    v_is_new := not exists (
        select from pgbroker.chord_parts p
        where p.group_id = p_group_id and p.task_id = p_task_id and p.position = v_position);
    if v_chord.returned + v_is_new::integer >= v_chord.size + v_chord.added then
        return 'COMPLETES';
    end if;
    if v_is_new then
        insert into pgbroker.chord_parts (group_id, task_id, position, number, part)
        values (p_group_id, p_task_id, v_position, v_chord.returned + 1, p_part);
        -- the index on expires_at is written now and then, not with each part
        update pgbroker.chords c
        set returned = c.returned + 1,
            expires_at = case when c.expires_at is null or c.expires_at < v_now + (v_expires_at - v_now) * 0.9
                then v_expires_at else c.expires_at end
        where c.group_id = p_group_id;
    end if;
    return 'KEPT';
end
$$;

-- A member of a chord has ended: keep its part, and with it, in one transaction, its result and the end of its job. If that
-- part completes the chord, nothing is written: see keep_chord_part(). Not for a caller's transaction.
--   p_group_id, p_position, p_part, p_chord_seconds   as in keep_chord_part()
--   p_task_id, p_status, p_meta, p_seconds, p_job_id, p_claim   as in end_task(); p_job_id null: no job ends here;
--              p_meta null: the result is ignored, or was written before
--   outcome    give null; what keep_chord_part() returned
create or replace procedure pgbroker.return_chord_part(
    p_group_id text, p_position integer, p_part bytea, p_chord_seconds double precision,
    p_task_id text, p_status text, p_meta bytea, p_seconds double precision, p_job_id bigint, p_claim bigint,
    inout outcome text)
language plpgsql as $$
begin
    outcome := pgbroker.keep_chord_part(p_group_id, p_task_id, p_position, p_part, p_chord_seconds);
    if outcome = 'COMPLETES' then
        return;
    end if;
    if p_job_id is not null then
        call pgbroker.end_task(p_task_id, p_status, p_meta, p_seconds, p_job_id, p_claim, true);
    elsif p_meta is not null then
        call pgbroker.store_result(p_task_id, p_status, p_meta, p_seconds);
    end if;
end
$$;

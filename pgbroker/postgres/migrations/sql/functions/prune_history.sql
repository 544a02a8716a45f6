-- Empty the next day partition of job_history whose rows are all older than history_seconds.
--   p_after  the last_day of the call before; 0 to begin, with the oldest day
-- Returns: last_day, the day (its number, UTC) that was dealt with, and whether it was emptied or somebody was using it;
--   null after the last one. is_leader is false, and nothing done, while another process prunes (advisory lock of this
--   transaction).
-- A slot holds rows of the latest day of its number and possibly, if nobody pruned for 32 days, older ones; it may go when
-- that day lies before the day of now - history_seconds. So with at most 30 days of history every slot stands free for a
-- whole day before its turn comes again. history_seconds 0: today's goes too.
-- Locks: ACCESS EXCLUSIVE on that partition, waited for at most 0.2 s, since whoever reads history would queue up behind.
create or replace function pgbroker.prune_history(
    p_after integer default 0, out is_leader boolean, out last_day integer, out is_emptied boolean)
language plpgsql as $$
declare
    v_now double precision := extract(epoch from clock_timestamp());
    v_seconds double precision := pgbroker.history_seconds();
    v_today integer := floor(v_now / 86400);
    v_last integer := case when v_seconds > 0 then floor((v_now - v_seconds) / 86400) - 1 else v_today end;
    v_table text;
begin
    is_leader := pg_try_advisory_xact_lock(hashtextextended('pgbroker.prune', 0));
    if not is_leader then
        return;
    end if;
    perform set_config('lock_timeout', '200', true);
    for v_day in greatest(v_today - 31, p_after + 1) .. v_last loop
        v_table := 'pgbroker.job_history_' || to_char(v_day % 32, 'FM00');
        continue when pg_relation_size(v_table::regclass) = 0;
        last_day := v_day;
        begin
            execute 'truncate ' || v_table;
            is_emptied := true;
        exception when lock_not_available then
            is_emptied := false;
        end;
        return;
    end loop;
end
$$;

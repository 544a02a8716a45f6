-- Take all waiting messages out of a queue, in one transaction: for transient queues, and for what a queue holds that has
-- just been emptied batch by batch (see purge_batch). Jobs that wait end as CANCELLED; running ones go on.
-- Returns: how many were taken out.
create or replace function pgbroker.purge_queue(p_queue text) returns bigint
language plpgsql as $$
declare
    v_count bigint := 0;
    v_purged bigint;
    v_last bigint;
    v_lane smallint;
    v_time timestamptz;
    v_id bigint;
begin
    loop
        select last_job, lane, after_time, after_id, purged into v_last, v_lane, v_time, v_id, v_purged
        from pgbroker.purge_batch(p_queue, 1000, v_last, v_lane, v_time, v_id);
        v_count := v_count + v_purged;
        exit when v_lane is null;
    end loop;
    return v_count;
end
$$;

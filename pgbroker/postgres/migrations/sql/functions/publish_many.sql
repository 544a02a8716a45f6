-- Send many messages through their exchanges, as a part of a transaction that somebody else commits.
--   p_numbers     the place of each message in its batch
--   p_began       when the batch began: a message without a time of its own is due so many microseconds after that as its
--                 number says, which keeps the order
--   p_with_alias  as publish(), and the others as dispatch(), each an array with one item for each message
-- Returns: for each message one row for each queue that it went to, as dispatch() does; in no order.
-- Jobs for the default exchange go in by one insert. What that cannot decide (a dedupe key that is held, a task or a stamp
-- that was revoked) and what goes to an exchange or into a transient queue takes dispatch(), one by one. The two lines
-- about ttl_seconds and max_priority repeat publish(): a call for each row would cost more than the insert.
-- Joins of these arrays are avoided: the planner takes them for a few rows, and loops.
-- Locks: the new rows, in the order given; whoever calls sorts by dedupe key. Nobody's sleeper is touched; each queue's
-- shared channel is notified once.
create or replace function pgbroker.publish_many(
    p_numbers integer[], p_began timestamptz, p_exchanges text[], p_routing_keys text[], p_task_ids text[],
    p_task_names text[], p_priorities integer[], p_run_after timestamptz[], p_expires_at timestamptz[],
    p_delay_seconds double precision[], p_ttl_seconds double precision[], p_dedupe_keys text[], p_max_attempts integer[],
    p_content_types text[], p_content_encodings text[], p_headers text[], p_properties text[], p_bodies bytea[],
    p_with_alias boolean[])
returns table (
    number integer, queue_name text, queue_kind text, job_id bigint, duplicate_of bigint, duplicate_task_id text)
language plpgsql as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_soon timestamptz := v_now + interval '10 seconds'; -- see publish()
    v_has_stamps boolean := exists (select from pgbroker.revoked_stamps);
    v_queues text[];
    v_revoked text[];
    v_ids bigint[]; -- of all messages, null for those that take the long way
    v_stored bigint[]; -- those that were, ascending
    v_next integer := 1;
    v_wake text[];
    v_rest record;
begin
    select coalesce(array_agg(r.queue_name), '{}') into v_queues
    from (select distinct k from unnest(p_exchanges, p_routing_keys) m (x, k) where x = '') d
    cross join lateral pgbroker.route('', d.k) r
    where r.kind = 'job';
    select array_agg(r.task_id) into v_revoked
    from pgbroker.revoked r where r.task_id = any (p_task_ids) and r.until > v_now;
    select array_agg(case
            when m.exchange <> '' or m.queue <> all (v_queues) or m.task_id = any (v_revoked)
                or v_has_stamps and pgbroker.bears_revoked_stamp(m.headers, m.properties) then null
            else nextval('pgbroker.job_id_seq') end)
    into v_ids
    from unnest(p_exchanges, p_routing_keys, p_task_ids, p_headers, p_properties)
        m (exchange, queue, task_id, headers, properties);
    with stored as (
        insert into pgbroker.jobs_live (job_id, run_after, enqueued_at, expires_at, priority, max_attempts, queue, task_id,
            task_name, dedupe_key, content_type, content_encoding, headers, properties, body)
        select m.id, t.due, v_now,
            least(coalesce(m.expires_at, v_now + make_interval(secs => m.ttl_seconds)),
                t.due + make_interval(secs => q.ttl_seconds)),
            least(m.priority, q.max_priority), m.max_attempts, m.queue, m.task_id, m.task_name, m.dedupe_key,
            m.content_type, m.content_encoding, m.headers, m.properties, m.body
        from unnest(v_ids, p_numbers, p_routing_keys, p_task_ids, p_task_names, p_priorities, p_run_after, p_expires_at,
            p_delay_seconds, p_ttl_seconds, p_dedupe_keys, p_max_attempts, p_content_types, p_content_encodings, p_headers,
            p_properties, p_bodies)
            m (id, n, queue, task_id, task_name, priority, run_after, expires_at, delay_seconds, ttl_seconds, dedupe_key,
                max_attempts, content_type, content_encoding, headers, properties, body)
        cross join lateral (
            select coalesce(m.run_after, p_began + make_interval(secs => coalesce(m.delay_seconds, m.n / 1e6))) as due) t
        left join pgbroker.queues q on q.name = m.queue
        where m.id is not null
        order by m.id
        on conflict (queue, dedupe_key) where dedupe_key is not null do nothing
        returning jobs_live.job_id, jobs_live.queue, jobs_live.run_after
    )
    select coalesce(array_agg(s.job_id order by s.job_id), '{}'), array_agg(distinct s.queue) filter (
            where s.run_after <= v_soon)
    into v_stored, v_wake
    from stored s;
    perform pg_notify(pgbroker.queue_channel(w.queue), '') from unnest(v_wake) w (queue);
    if cardinality(v_stored) < cardinality(v_ids) then
        for place in 1 .. cardinality(v_ids) loop
            if v_ids[place] = v_stored[v_next] then
                v_next := v_next + 1;
            else
                v_ids[place] := null;
            end if;
        end loop;
    end if;
    return query
        select m.n, m.queue, 'job', m.id, null::bigint, null::text
        from unnest(p_numbers, p_routing_keys, v_ids) m (n, queue, id)
        where m.id is not null;
    if cardinality(v_stored) = cardinality(v_ids) then
        return;
    end if;
    for v_rest in
        select m.*
        from unnest(v_ids, p_numbers, p_exchanges, p_routing_keys, p_task_ids, p_task_names, p_priorities, p_run_after,
            p_expires_at, p_delay_seconds, p_ttl_seconds, p_dedupe_keys, p_max_attempts, p_content_types,
            p_content_encodings, p_headers, p_properties, p_bodies, p_with_alias) with ordinality
            m (id, n, exchange, queue, task_id, task_name, priority, run_after, expires_at, delay_seconds, ttl_seconds,
                dedupe_key, max_attempts, content_type, content_encoding, headers, properties, body, with_alias, place)
        where m.id is null
        order by m.place
    loop
        if v_rest.run_after is null and v_rest.delay_seconds is null then
            v_rest.run_after := p_began + v_rest.n * interval '1 microsecond';
        end if;
        return query
            select v_rest.n, d.* from pgbroker.dispatch(v_rest.exchange, v_rest.queue, v_rest.task_id, v_rest.task_name,
                v_rest.priority, v_rest.run_after, v_rest.expires_at, v_rest.delay_seconds, v_rest.ttl_seconds,
                v_rest.dedupe_key, v_rest.max_attempts, v_rest.content_type, v_rest.content_encoding, v_rest.headers,
                v_rest.properties, v_rest.body, true, null, v_rest.with_alias) d;
    end loop;
end
$$;

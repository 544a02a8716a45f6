-- Say that consumers are gone. An auto-delete queue goes with its last consumer; one with x-expires starts to expire.
--   p_tags  null: all consumers of the process, and its exclusive queues
create or replace function pgbroker.depart(p_worker text, p_tags text[] default null) returns void
language plpgsql as $$
declare
    v_now timestamptz := clock_timestamp();
    v_queues text[];
begin
    perform set_config('synchronous_commit', 'off', true);
    with gone as (
        delete from pgbroker.consumers c where c.worker = p_worker and (p_tags is null or c.tag = any (p_tags)) returning c.queue)
    select array_agg(g.queue) into v_queues from gone g;
    update pgbroker.transient_queues q set lives_until = v_now + make_interval(secs => q.expires_seconds)
    where q.name = any (v_queues) and q.expires_seconds is not null and not q.auto_delete
        and not exists (select from pgbroker.consumers c where c.queue = q.name and c.lives_until > v_now);
    perform pgbroker.delete_queue(q.name) from pgbroker.transient_queues q
    where (q.auto_delete and q.name = any (v_queues) or p_tags is null and q.owner = p_worker)
        and not exists (select from pgbroker.consumers c where c.queue = q.name and c.lives_until > v_now);
end
$$;

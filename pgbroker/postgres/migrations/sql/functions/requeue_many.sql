-- Give several dead letters another life, each as requeue() does, in one transaction.
--   p_ids      the jobs, a batch of them
--   p_wait_ms  longest wait for each, if an open transaction holds its dedupe key or its row. Keep it below
--              deadlock_timeout (1 s), so that it is never the other one's transaction that is sacrificed
-- Returns: for each job the outcome and holder of requeue(); outcome 'busy' if the wait was too long.
-- Locks: the rows of requeue(), in the order of queue and key, as batches of publishes do.
create or replace function pgbroker.requeue_many(p_ids bigint[], p_wait_ms integer default 200)
returns table (requeued_id bigint, outcome text, holder_job_id bigint, holder_task_id text)
language plpgsql as $$
begin
    perform set_config('lock_timeout', p_wait_ms::text, true);
    for requeued_id in
        select i.id from unnest(p_ids) with ordinality i (id, place) left join pgbroker.jobs_dead d on d.job_id = i.id
        order by d.queue, d.dedupe_key, i.place
    loop
        begin
            select r.outcome, r.holder_job_id, r.holder_task_id into outcome, holder_job_id, holder_task_id
            from pgbroker.requeue(requeued_id) r;
        exception when lock_not_available then
            outcome := 'busy';
            holder_job_id := null;
            holder_task_id := null;
        end;
        return next;
    end loop;
end
$$;

-- The NOTIFY channel on which bind_queue() says that there is a new binding.
create or replace function pgbroker.topology_channel() returns text
language sql immutable parallel safe as $$
    select 'pgbt_' || md5('pgbroker.')
$$;

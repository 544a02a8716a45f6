-- The NOTIFY channel on which workers hear that there are outcomes to deliver. The schema is part of it, so that two
-- brokers in one database do not wake each other.
create or replace function pgbroker.outcome_channel() returns text
language sql immutable parallel safe as $$
    select 'pgbo_' || md5('pgbroker.outcome_outbox')
$$;

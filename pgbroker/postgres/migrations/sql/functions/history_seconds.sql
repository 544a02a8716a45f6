-- How long finished jobs stay visible, in seconds; 0: they are deleted on completion.
create or replace function pgbroker.history_seconds() returns double precision
language sql stable as $$
    select coalesce((select value::double precision from pgbroker.settings where name = 'history_seconds'), 86400)
$$;

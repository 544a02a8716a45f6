-- Wait after the p_attempt-th failure: 5 s, doubling, at most 600 s. The same rule as pgbroker.compute_backoff in Python.
create or replace function pgbroker.backoff_seconds(p_attempt integer) returns double precision
language sql immutable parallel safe as $$
    select least(5 * power(2, least(greatest(p_attempt, 1) - 1, 20)), 600)
$$;

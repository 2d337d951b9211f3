-- 011_provider.sql - jobs are found by what the provider calls them.
--
-- Only those that have such an id: it comes with the end of a job, so neither
-- a lease nor a mark touches this index.

CREATE INDEX job_provider ON latchkey.job (provider_id)
    WHERE provider_id <> '';

-- 010_audit.sql - finds the entries of one operation, and of one job.
--
-- Without the scope, which may be longer than an index takes.

CREATE INDEX audit_name ON latchkey.audit (tenant, key)
    WHERE tenant IS NOT NULL;
CREATE INDEX audit_token ON latchkey.audit (token);

/* plants.h - bugs that can be planted, one X each; NONE is the real thing. */
X(NONE, "none", "nothing is planted")
/* In the machine: its inputs or its output are changed. */
X(TOKEN, "token-ignored", "any token counts as the current one")
X(LATE_COMPLETE, "late-completion", "COMPLETE by an overtaken holder counts")
X(RETURN, "return-unfenced", "RETURN counts with any token")
X(PROOF, "proof-unfenced", "a proof counts for whichever claim is there")
X(RUNNING, "running-is-resolved",
  "an operator releases what runs, without the override")
X(EXTEND, "extend-ignored", "EXTEND says OK and changes nothing")
X(SWEEPER, "sweeper-releases", "the sweeper releases what it should doubt")
X(SWEEP_QUEUED, "sweeper-takes-accepted",
  "the sweeper doubts requests that only their lease may judge")
X(LAPSED, "lapsed-is-new", "a claim of a lapsed lock is NEW")
X(OWNER, "owner-gets-another-token", "a claim sent again is a new claim")
X(OVERWRITE, "completion-overwrites", "a second COMPLETE replaces the first")
X(REAPER, "reaper-takes-uncertain", "the reaper forgets what is uncertain")
/* In the store's rules of leases. */
X(LEASE_TWICE, "leased-twice", "a lease that goes on is given to another one")
X(END, "lease-unfenced", "a lease is ended by a courier that has lost it")
X(LOST_AGAIN, "lost-runs-again", "a lost request that was called is leased")
X(UNCALLED, "uncalled-is-doubted",
  "a courier that knows nothing makes uncertain what was never called")
X(DEAD, "given-up-never-ran",
  "a request that is given up counts as never run, though it was sent")
/* In the gateway. */
X(TIMEOUT, "timeout-releases", "the app's silence is taken for a refusal")
X(EARLY, "answer-before-store", "the client gets the answer before it is kept")
X(UNCHECKED, "unchecked-delivery",
  "the app is called before EXTEND is answered")
X(NO_ASK, "lost-claim-forgotten", "a claim without a reply is not asked for")
X(NO_ASK_BUSY, "lost-claim-left-to-others",
  "a lost claim is not asked for if its repetition finds another holder")
X(CALLS_TWICE, "app-asked-twice", "the app's silence makes the gateway repeat")
X(NO_RETURN, "return-not-sent", "only the courier hears that nothing happened")
X(NO_LATE, "late-settlement-dropped",
  "a settlement without a reply is not sent again")
X(STALE, "stale-is-ok", "STALE is taken for OK, and the answer is sent")

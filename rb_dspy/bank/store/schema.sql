-- "schema", "embedder", "dimension", and "epoch", which counts moves to another embedder and purges
CREATE TABLE meta (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL);
-- "seq" is the highest number used. The row is locked while numbers are reserved, so they are in commit order.
CREATE TABLE scopes (
    id {serial} NOT NULL PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    seq BIGINT NOT NULL
);
-- "level": 0 held, 1 learned, 2 owner. "reward": ground truth, 0 to 1, if it is known. "payload": task, trajectories and
-- verdicts as compressed JSON
CREATE TABLE experiences (
    scope_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    id TEXT NOT NULL,
    ended BIGINT,
    task_id TEXT NOT NULL,
    template TEXT,
    run_id TEXT NOT NULL,
    origin TEXT NOT NULL,
    distiller TEXT NOT NULL,
    note TEXT NOT NULL,
    label TEXT NOT NULL,
    polarity TEXT NOT NULL,
    instruction TEXT NOT NULL,
    created_at TEXT NOT NULL,
    level INTEGER NOT NULL,
    reward {real},
    payload {bytes} NOT NULL,
    PRIMARY KEY (scope_id, seq),
    UNIQUE (scope_id, id)
);
CREATE INDEX experiences_task ON experiences (scope_id, task_id, seq);
CREATE INDEX experiences_run ON experiences (scope_id, run_id, seq);
-- partial, because SQLite would otherwise prefer it for reads of live rows
CREATE INDEX experiences_ended ON experiences (scope_id, ended) WHERE ended IS NOT NULL;
-- One row for each item of each experience. "learned" is the row's own number, or, for the row of an edited text, the
-- "learned" of the row that it replaced; "experience" is the number of the experience. "data" is JSON. "task_id",
-- "origin", "level" and "polarity" are those of the experience, but "level" is 2 after an edit by the owner.
CREATE TABLE items (
    scope_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    id TEXT NOT NULL,
    ended BIGINT,
    learned BIGINT NOT NULL,
    experience BIGINT NOT NULL,
    task_id TEXT NOT NULL,
    polarity TEXT NOT NULL,
    title TEXT NOT NULL,
    description TEXT NOT NULL,
    content TEXT NOT NULL,
    kind TEXT NOT NULL,
    data TEXT NOT NULL,
    origin TEXT NOT NULL,
    level INTEGER NOT NULL,
    PRIMARY KEY (scope_id, seq)
);
CREATE INDEX items_id ON items (scope_id, id);
CREATE INDEX items_experience ON items (scope_id, experience);
CREATE INDEX items_ended ON items (scope_id, ended) WHERE ended IS NOT NULL;
-- unit rows in half precision, of experiences (their instruction) and item rows, by the embedder that made them
CREATE TABLE vectors (
    scope_id INTEGER NOT NULL,
    unit TEXT NOT NULL,
    seq BIGINT NOT NULL,
    embedder TEXT NOT NULL,
    data {vector} NOT NULL,
    PRIMARY KEY (scope_id, unit, seq, embedder)
);
-- "subject": an item or an experience that an agent was shown before it made "experience", which has the verdict and the
-- reward that came of it. "place" is its place in the prompt, from 0 on; "cited": 1 if the agent said that it used it
CREATE TABLE uses (
    scope_id INTEGER NOT NULL,
    experience BIGINT NOT NULL,
    subject TEXT NOT NULL,
    place INTEGER NOT NULL,
    cited INTEGER NOT NULL,
    PRIMARY KEY (scope_id, experience, subject)
);
CREATE INDEX uses_subject ON uses (scope_id, subject);
-- "seq" is the last number of the write, "subject" the changed experience or item, "item_ids" (JSON) the ids of the
-- experience's items, or of the item that replaced an edited one; for a mark, its name, and "note" is its value. What an
-- experience says of an item that was shown is a mark, too: "item_ids" are "helped" and the experience. For a retired item
-- they are the items of the experience that retired it, "seq" is that of the experience's entry, and "note" the reason
CREATE TABLE journal (
    scope_id INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    subject TEXT NOT NULL,
    kind TEXT NOT NULL,
    item_ids TEXT NOT NULL,
    note TEXT NOT NULL,
    created_at TEXT NOT NULL,
    PRIMARY KEY (scope_id, seq, subject)
);
CREATE INDEX journal_subject ON journal (scope_id, subject);
-- partial: most entries are appends, which are read by their subject only
CREATE INDEX journal_changes ON journal (scope_id, kind, seq) WHERE kind <> 'append';
CREATE TABLE snapshots (
    scope_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    seq BIGINT NOT NULL,
    created_at TEXT NOT NULL,
    PRIMARY KEY (scope_id, name)
);
-- Rollouts that were recorded and not learned from yet. "content" is empty in a run; without a run it is the id of the
-- experience that the rollout becomes. "shown" is JSON.
CREATE TABLE pending (
    number {serial} NOT NULL PRIMARY KEY,
    scope_id INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    rollout_id TEXT NOT NULL,
    content TEXT NOT NULL,
    tries INTEGER NOT NULL,
    error TEXT NOT NULL,
    shown TEXT NOT NULL,
    created_at TEXT NOT NULL,
    origin TEXT NOT NULL,
    payload {bytes} NOT NULL,
    UNIQUE (scope_id, run_id, task_id, rollout_id, content)
)

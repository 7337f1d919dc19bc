package conductor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/task"
	"berth/migration/turns"
)

// Buckets of the conductor in its store.
const (
	bucketMigrations = "migrations" // by uuid: the record and what was asked
	bucketAborts     = "aborts"     // by uuid: an abort was asked for in time
	bucketTasks      = "tasks"      // by uuid/attempt: package task's journal
)

// Conductor drives the migrations of one agent. All methods may be called from
// several actors. It is built with New and works while Run runs.
type Conductor struct {
	cfg    Config
	engine *task.Engine
	mutate func([]task.Step) []task.Step               // breaks a story on purpose, in tests; else nil
	strays func(migration.Migration, migration.Status) // in tests: told of a status that may not follow this one

	// mu guards what follows. Leaf lock: no host, store or Placement is called
	// and nothing waits under it, but watchers' buffered channels are filled.
	mu      sync.Mutex
	run     context.Context   // of Run; nil while it does not run
	stories map[string]*story // by migration uuid, finished ones too
	uuids   map[string]string // of migrations that are called otherwise by hosts and journals
	busy    map[string]string // instance uuid → uuid of its unfinished migration
	// incoming is how many guests come from each host, and limited what was last decided by;
	// see turns_queue.go.
	incoming map[string]int
	limited  turns.Limits
	actors   int
	idle     context.CancelFunc // ends Run's wait when actors is 0
}

// New makes a conductor. It does nothing before Run.
func New(cfg Config) *Conductor {
	c := &Conductor{cfg: cfg.withDefaults(), stories: map[string]*story{}, uuids: map[string]string{}, busy: map[string]string{}, incoming: map[string]int{}}
	c.engine = task.New(task.Options{
		Runtime: c.cfg.Runtime, Store: c.cfg.Store, Bucket: bucketTasks, Logger: c.cfg.Logger,
		UndoLater: c.cfg.UndoLater, Patience: c.cfg.Patience, OnChange: c.taskChanged,
		// The guest stands still while the destination does not take the token.
		BackoffMax: 2 * time.Second,
	})
	return c
}

// stored is a migration as its bucket keeps it.
type stored struct {
	Migration migration.Migration `json:"migration"`
	// Named is the destination that was asked for; empty when candidates decide.
	Named string `json:"named,omitempty"`
	// Alternates are those that are tried after it; see Request.
	Alternates []string `json:"alternates,omitempty"`
	// Called is how hosts and the steps' journal name a migration that had no uuid
	// when it was begun; empty for its uuid.
	Called string `json:"called,omitempty"`
	// Limit is how long one attempt may take, and Until when the current one is over.
	Limit time.Duration    `json:"limit,omitempty"`
	Until runtime.BootTime `json:"until,omitzero"`

	// Of cold moves and changes: what is to change, how long the guest is given to shut
	// itself down, after which time it is confirmed by itself and when that is, and what
	// its two consumers hold once it has been moved.
	Change    migration.Change `json:"change,omitzero"`
	Shutdown  time.Duration    `json:"shutdown_timeout,omitempty"`
	Window    time.Duration    `json:"confirm_window,omitempty"`
	ConfirmAt runtime.BootTime `json:"confirm_at,omitzero"`
	Held      *held            `json:"held,omitempty"`
}

// Run recovers every unfinished migration from the journal and drives all until
// ctx ends; then it waits for its actors and returns nil. What is unfinished
// goes on at the next Run, also in another process. It returns an error only
// when the journal cannot be listed. Called once.
func (c *Conductor) Run(ctx context.Context) error {
	unfinished, err := c.recover(ctx)
	if err != nil {
		return fmt.Errorf("recover migrations: %w", err)
	}
	c.recallTurns(unfinished)
	wait, idle := context.WithCancel(context.WithoutCancel(ctx))
	defer idle()
	resting := c.resting()
	for _, s := range resting {
		s.timeLimits().renewWindow(ctx) // before anybody is answered
	}
	c.mu.Lock()
	c.run = ctx
	c.mu.Unlock()
	for _, s := range resting {
		s.timeLimits().awaitWindow(ctx)
	}
	if c.cfg.Fleet != nil {
		c.spawn("evacuations that are done", func() { c.completeEvacuations(ctx) })
	}
	for _, s := range unfinished {
		c.cfg.Logger.Info("migration recovered", "migration", s.rec.UUID, "instance", s.rec.InstanceUUID, "attempt", s.rec.Attempt)
		c.spawn("migration "+s.rec.UUID, func() {
			// Where nothing is undone any more for want of an answer, none is waited for: the
			// guest may stand still. An operator's word is there to turn it back.
			_, said := s.word(ctx)
			if c.cfg.Ready == nil || !said && s.endings().onlyForward() || c.cfg.Ready(ctx) == nil {
				s.drive(ctx)
			}
		})
	}
	// A sleep that ctx ends, so that a simulator sees this actor waiting.
	for ctx.Err() == nil {
		_ = c.cfg.Runtime.Sleep(ctx, forever)
	}
	c.mu.Lock()
	c.run = nil
	c.idle = idle
	if c.actors == 0 {
		idle()
	}
	c.mu.Unlock()
	for wait.Err() == nil {
		_ = c.cfg.Runtime.Sleep(wait, forever)
	}
	return nil
}

// resting gives the migrations that wait to be confirmed, oldest first.
func (c *Conductor) resting() []*story {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*story
	for _, s := range c.stories {
		if s.resting {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b *story) int { return byAge(a.rec, b.rec) })
	return out
}

// Running reports whether Run has recovered the journal and has not been told to
// stop: from then on every migration is known by Get, List and Watch, and new
// ones are accepted. An agent answers nobody before.
func (c *Conductor) Running() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.run != nil && c.run.Err() == nil
}

// spawn starts an actor that Run waits for.
func (c *Conductor) spawn(name string, f func()) {
	c.mu.Lock()
	c.actors++
	c.mu.Unlock()
	c.cfg.Runtime.Go(name, func() {
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.actors--; c.actors == 0 && c.idle != nil {
				c.idle()
			}
		}()
		f()
	})
}

// recover reads the journal and gives the stories that have to go on, oldest
// first. A record that cannot be read is logged and left where it is: the others
// must go on.
func (c *Conductor) recover(ctx context.Context) ([]*story, error) {
	records, err := c.cfg.Store.List(ctx, bucketMigrations)
	if err != nil {
		return nil, err
	}
	aborts, err := c.cfg.Store.List(ctx, bucketAborts)
	if err != nil {
		return nil, err
	}
	if err := c.nameRecords(ctx, records, aborts); err != nil {
		return nil, err
	}
	tasks, broken, err := c.engine.Load(ctx)
	if err != nil {
		return nil, err
	}

	var unfinished []*story
	c.mu.Lock()
	for id, raw := range records {
		var kept stored
		if err := json.Unmarshal(raw, &kept); err != nil {
			c.cfg.Logger.Error("a migration record cannot be read", "migration", id, "error", err)
			continue
		}
		s := newStory(c, kept)
		s.recovered = true
		s.resting = s.rec.Stage == migration.StageFinished
		_, s.rec.AbortRequested = aborts[id]
		c.stories[id] = s
		if s.called != "" {
			c.uuids[s.called] = id
		}
		if s.rec.Done() {
			continue
		}
		c.busy[s.rec.InstanceUUID] = id
		if s.resting {
			s.rec.AbortRequested = false
			continue
		}
		if err := broken[s.taskID()]; err != nil {
			// What it has done is not known: neither repeated nor undone.
			c.cfg.Logger.Error("a migration cannot go on", "migration", id, "error", err)
			s.rec.Status, s.rec.Outcome, s.rec.Error = migration.StatusError, migration.OutcomeInDoubt, task.Keep(err)
			continue
		}
		if s.task = tasks[s.taskID()]; s.task != nil {
			s.state = s.task.State()
		}
		delete(tasks, s.taskID())
		unfinished = append(unfinished, s)
	}
	c.mu.Unlock()
	slices.SortFunc(unfinished, func(a, b *story) int { return byAge(a.rec, b.rec) })

	// What a crash left between a record's last write and the deletion of its
	// journal.
	behind := map[string]*story{}
	for id, t := range tasks {
		called, _, _ := strings.Cut(id, "/")
		switch s := c.calledLocked(called); {
		case s == nil:
		case s.undosLeft().left(t):
			s.undosLeft().leave(t)
			behind[id] = s
		default:
			c.dropTask(ctx, id)
		}
	}
	for id := range aborts {
		if s := c.stories[id]; s != nil && (s.rec.Done() || s.resting) {
			c.dropAbort(ctx, id)
		}
	}
	if err := c.readWords(ctx); err != nil {
		return nil, err
	}
	c.prune(ctx)
	for journal, s := range behind {
		c.lag(ctx, s, journal)
	}
	return unfinished, nil
}

// Get is a migration at this moment; fault.NotFound.
func (c *Conductor) Get(_ context.Context, uuid string) (migration.Migration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stories[uuid]
	if s == nil {
		return migration.Migration{}, fault.New(fault.NotFound, "migration %s is not known here", uuid)
	}
	return s.view(), nil
}

// List is every migration that is kept, oldest first.
func (c *Conductor) List(context.Context) ([]migration.Migration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]migration.Migration, 0, len(c.stories))
	for _, s := range c.stories {
		out = append(out, s.view())
	}
	slices.SortFunc(out, byAge)
	return out, nil
}

func byAge(a, b migration.Migration) int {
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.UUID, b.UUID))
}

// Watch gives a migration's state at once and after every change. A slow reader
// skips to the newest. The channel is closed after the last state of a
// migration that is over, and when ctx ends. fault.NotFound.
func (c *Conductor) Watch(ctx context.Context, uuid string) (<-chan migration.Migration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stories[uuid]
	if s == nil {
		return nil, fault.New(fault.NotFound, "migration %s is not known here", uuid)
	}
	ch := make(chan migration.Migration, 1)
	m := s.view()
	ch <- m
	if m.Done() {
		close(ch)
		return ch, nil
	}
	s.watchers[ch] = context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, still := s.watchers[ch]; still {
			delete(s.watchers, ch)
			close(ch)
		}
	})
	return ch, nil
}

// calledLocked finds a migration by the name that its steps' journal has for it.
func (c *Conductor) calledLocked(name string) *story {
	if id, ok := c.uuids[name]; ok {
		name = id
	}
	return c.stories[name]
}

// taskChanged publishes a task's change on its migration.
func (c *Conductor) taskChanged(st task.State) {
	called, _, _ := strings.Cut(st.ID, "/")
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.calledLocked(called); s != nil && s.taskID() == st.ID {
		s.state = st
		s.publishLocked()
	}
}

// prune deletes the oldest finished records beyond KeepFinished. Best effort:
// a record that stays is only one more line in a list.
func (c *Conductor) prune(ctx context.Context) {
	c.mu.Lock()
	var done []migration.Migration
	for _, s := range c.stories {
		if s.rec.Done() && !s.undosLeft().lags() {
			done = append(done, s.rec)
		}
	}
	slices.SortFunc(done, byAge)
	done = done[:max(0, len(done)-c.cfg.KeepFinished)]
	for _, m := range done {
		delete(c.stories, m.UUID)
	}
	c.mu.Unlock()
	for _, m := range done {
		if err := c.cfg.Store.Delete(ctx, bucketMigrations, m.UUID); err != nil && !errors.Is(err, context.Canceled) {
			c.cfg.Logger.Warn("an old migration record stays", "migration", m.UUID, "error", err)
		}
	}
}

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/agent/api"
	"berth/agent/guard"
	"berth/claims"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store"
)

// ledgerFile is the database in the state directory.
const ledgerFile = "berth.db"

// keyRebuild is the record of a ledger that was lost, or of which a record was: it
// is there from the commit that puts a new database in the old one's place.
const keyRebuild = "rebuild"

// rebuildRecord says what was lost, and whether it has been put back.
type rebuildRecord struct {
	Cause string    `json:"cause"`          // in a person's words
	Kept  string    `json:"kept,omitempty"` // the damaged file; empty where there was none
	Began time.Time `json:"began"`
	Saved int       `json:"saved"`          // records of the damaged file that were taken over
	Lost  int       `json:"lost,omitempty"` // records that it should have had beside them; -1 for nobody knows
	// Behind says that what was saved may be one commit old.
	Behind bool `json:"behind,omitempty"`
	// Ended is when all that was asked had answered, or had been waited for; zero
	// before. From then on claims are given again.
	Ended time.Time `json:"ended,omitzero"`
	// Counted are guests that were put back, InDoubt those of which nobody knows whose
	// they are, when it ended.
	Counted int `json:"counted,omitempty"`
	InDoubt int `json:"in_doubt,omitempty"`
}

// ledger is how the agent stands to its own database.
//
//	state     what it is                               claims  starts  verbs  writes to Placement
//	whole     opened well, or rebuilt                  yes     yes     yes    yes
//	pending   a new one, others are asked              no      no      no     no
//	standing  a stand-in: the right one is not to be   no      no      no     no
//	          touched, or could not be read
//
// Guests in doubt of a rebuilt ledger are counted, and neither started nor moved.
type ledger struct {
	a       *Agent
	path    string
	standIn string // the folder of a stand-in; empty for none
	closed  error  // why there is a stand-in; nil for none

	// mu guards what follows; nothing is called under it.
	mu     sync.Mutex
	record *rebuildRecord
	silent []string          // hosts that were asked in the last round and did not answer, with the reason
	doubts map[string]string // by instance: why it is in doubt
	since  time.Duration     // of the first round that was not complete, on the boot clock

	// whole is closed once the ledger is known.
	whole chan struct{}
}

// openLedger opens the database, or sees to it that the agent has one to live with:
// a damaged file is set aside and what is left of it taken over, one that must not be
// touched gets a stand-in. The error is of a second process alone.
func (a *Agent) openLedger(ctx context.Context, c config.Config) error {
	l := &ledger{a: a, path: filepath.Join(c.Agent.StateDir, ledgerFile), whole: make(chan struct{}), doubts: map[string]string{}}
	a.ledger = l
	// Where guests were managed before, a database that is not there was lost.
	db, err := store.Open(l.path, store.Options{Logger: a.log, MustExist: guard.Managed(c.Agent.StateDir), TellCopies: true})
	switch {
	case err == nil:
		a.db = db
		cause := db.Older()
		if db.Behind() {
			cause = "one of the two pages that say which commit is the last is damaged: the last commit may be missing"
		}
		if cause != "" {
			err = l.begin(ctx, rebuildRecord{Cause: cause, Began: a.rt.Now(), Behind: true})
		}
	case errors.Is(err, fault.Busy):
		return err
	case store.Lost(err):
		err = l.replace(err)
	}
	if a.db == nil {
		if err = l.standing(c, err); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if err := l.load(ctx); err != nil {
		return err
	}
	if l.state() == nil {
		close(l.whole)
	}
	return nil
}

// begin leaves the record in a database that is there.
func (l *ledger) begin(ctx context.Context, r rebuildRecord) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return l.a.db.Put(ctx, store.BucketAgent, keyRebuild, raw)
}

// replace sets the file aside and puts in its place a new one with what is left, and
// with the record that says so: one rename, so that a crash leaves the one or the
// other, and a second start ends the same.
func (l *ledger) replace(why error) error {
	a := l.a
	saved, err := store.Salvage(l.path)
	switch {
	case errors.Is(err, fault.NotFound):
		saved = store.Salvaged{Lost: -1}
	case err != nil:
		return err
	}
	// One that an earlier start left in the file: what was lost then may be lost still.
	records := slices.DeleteFunc(saved.Records, func(r store.Record) bool {
		if r.Bucket != store.BucketAgent || r.Key != keyRebuild {
			return false
		}
		var was rebuildRecord
		if json.Unmarshal(r.Value, &was) == nil && was.Ended.IsZero() {
			saved.Lost, saved.Behind = -1, saved.Behind || was.Behind
		}
		return true
	})
	record := rebuildRecord{Cause: causeOf(why), Began: a.rt.Now(), Saved: len(records), Lost: saved.Lost, Behind: saved.Behind}
	if saved.Complete() {
		record.Ended = record.Began // only what bbolt keeps for itself was damaged
	}
	// The name is in the record, so it is made before the record is.
	record.Kept, err = store.Keep(l.path, a.rt.Now())
	if err != nil {
		return err
	}
	raw, err := json.Marshal(record)
	if err != nil {
		return err
	}
	if _, err = store.SetAside(l.path, a.rt.Now(), append(records, store.Record{Bucket: store.BucketAgent, Key: keyRebuild, Value: raw})); err != nil {
		return err
	}
	a.log.Error("the ledger was damaged or lost: the file is kept, and what is missing is asked of libvirt, peers and Placement",
		"path", l.path, "kept", record.Kept, "cause", record.Cause, "saved", record.Saved, "lost", record.Lost, "faults", saved.Faults)
	a.db, err = store.Open(l.path, store.Options{Logger: a.log, MustExist: true, TellCopies: true})
	return err
}

// causeOf is an error of Open in a person's words.
func causeOf(err error) string {
	if errors.Is(err, fault.NotFound) {
		return "the database is missing, though this host has managed guests"
	}
	for _, r := range fault.ReasonsOf(err) {
		return r.Message
	}
	return err.Error()
}

// standing opens a database for this process alone, so that the agent can say what is
// wrong, count what runs and give nothing.
func (l *ledger) standing(c config.Config, why error) error {
	dirs := []string{c.Agent.RuntimeDir, os.TempDir()}
	var errs []error
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			errs = append(errs, err)
			continue
		}
		made, err := os.MkdirTemp(dir, "stand-in-")
		if err == nil {
			l.standIn = made
			l.a.db, err = store.Open(filepath.Join(made, ledgerFile), store.Options{Logger: l.a.log})
		}
		if err == nil {
			l.closed = fault.New(fault.KindOf(why), "the ledger of host %s is not known: %w", l.a.name, why)
			l.a.log.Error("the ledger cannot be used: nothing is given, started or moved until it can", "path", l.path, "error", why)
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(append([]error{why}, errs...)...)
}

// load reads the record.
func (l *ledger) load(ctx context.Context) error {
	raw, found, err := l.a.db.Get(ctx, store.BucketAgent, keyRebuild)
	if err != nil || !found {
		return err
	}
	var r rebuildRecord
	if err := json.Unmarshal(raw, &r); err != nil {
		// That something was lost is what it says at least.
		r = rebuildRecord{Cause: "the record of an earlier loss cannot be read: " + err.Error(), Began: l.a.rt.Now(), Lost: -1}
	}
	l.mu.Lock()
	l.record = &r
	l.mu.Unlock()
	return nil
}

// missing notes records that could not be decoded: what they said is asked of others.
func (l *ledger) missing(ctx context.Context, unread []claims.Unread) error {
	if len(unread) == 0 || l.closed != nil {
		return nil
	}
	words := make([]string, len(unread))
	for i, u := range unread {
		words[i] = u.String()
	}
	l.mu.Lock()
	r := l.record
	l.mu.Unlock()
	if r == nil || !r.Ended.IsZero() {
		r = &rebuildRecord{Began: l.a.rt.Now()}
	}
	next := *r
	next.Cause = strings.TrimPrefix(r.Cause+"; records that cannot be read: "+strings.Join(words, ", "), "; ")
	next.Lost, next.Ended = max(next.Lost, len(unread)), time.Time{}
	if err := l.begin(ctx, next); err != nil {
		return err
	}
	l.a.log.Error("records of the ledger cannot be read: what they said is asked of libvirt, peers and Placement", "records", words)
	wasWhole := l.state() == nil
	l.mu.Lock()
	l.record = &next
	l.mu.Unlock()
	if wasWhole {
		l.whole = make(chan struct{})
	}
	return nil
}

// state is why the ledger is not known; nil for one that is.
func (l *ledger) state() error {
	if l == nil {
		return nil // of a test's agent without one
	}
	if l.closed != nil {
		return l.closed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.record == nil || !l.record.Ended.IsZero() {
		return nil
	}
	message := "the ledger of host " + l.a.name + " is being rebuilt: " + l.record.Cause
	if len(l.silent) > 0 {
		message += "; not answered yet: " + strings.Join(l.silent, ", ")
	}
	return fault.Refuse(fault.Unavailable, "use the ledger of host "+l.a.name, fault.Reason{
		Code: "ledger_rebuilding", Message: message, Change: "wait: it is asked again by itself, and goes on without those that stay silent",
	})
}

// known waits until the ledger is known, or ctx ends, whose cause it then returns.
func (l *ledger) known(ctx context.Context) error {
	if l == nil {
		return nil
	}
	return runtime.Await(ctx, l.a.rt, l.whole)
}

// waiting runs f once the ledger is known.
func (l *ledger) waiting(f func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if l.known(ctx) != nil {
			return nil
		}
		return f(ctx)
	}
}

func (l *ledger) close() error {
	if l == nil || l.standIn == "" {
		return nil
	}
	return os.RemoveAll(l.standIn)
}

// condition is the ledger in berth status.
func (l *ledger) condition() api.Condition {
	const name = "ledger"
	if l.closed != nil {
		reasons := fault.ReasonsOf(l.closed)
		if len(reasons) == 0 {
			reasons = []fault.Reason{{Code: "database_unreadable", Message: l.closed.Error(), Change: "let the agent read and write " + l.path + ", and restart it"}}
		}
		return api.Degraded(name, l.closed.Error(), reasons...)
	}
	if err := l.state(); err != nil {
		reasons := fault.ReasonsOf(err)
		return api.Degraded(name, reasons[0].Message, append(reasons, l.keptReason()...)...)
	}
	if err := l.a.db.Room(); err != nil {
		return api.Degraded(name, err.Error(), fault.ReasonsOf(err)...)
	}
	var reasons []fault.Reason
	l.mu.Lock()
	silent := strings.Join(l.silent, ", ")
	for _, id := range slices.Sorted(maps.Keys(l.doubts)) {
		r := fault.Reason{
			Code: "instance_in_doubt", Message: "guest " + id + " is in doubt: " + l.doubts[id], Have: id,
			Change: "look for it on the other hosts; if it is nowhere else, berth instance adopt " + id,
		}
		if silent != "" {
			r.Message += "; silent: " + silent
		}
		reasons = append(reasons, r)
	}
	doubts := len(reasons)
	r := l.record
	l.mu.Unlock()
	reasons = append(reasons, l.keptReason()...)
	switch {
	case doubts > 0:
		return api.Degraded(name, fmt.Sprintf("rebuilt at %s; guests in doubt %d", r.Ended.Format(time.DateTime), doubts), reasons...)
	case len(reasons) > 0:
		return api.Degraded(name, reasons[0].Message, reasons...)
	case r != nil:
		return api.OK(name, fmt.Sprintf("rebuilt at %s: %s", r.Ended.Format(time.DateTime), r.Cause))
	}
	return api.OK(name, "whole")
}

// keptReason names a damaged file for as long as it lies there: who takes it away
// has seen it.
func (l *ledger) keptReason() []fault.Reason {
	l.mu.Lock()
	r := l.record
	l.mu.Unlock()
	if r == nil || r.Kept == "" {
		return nil
	}
	if _, err := os.Lstat(r.Kept); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lost := fmt.Sprintf("%d records were saved and %d lost", r.Saved, r.Lost)
	if r.Lost < 0 {
		lost = fmt.Sprintf("%d records were saved, and how many were lost is not known", r.Saved)
	}
	return []fault.Reason{{
		Code: "ledger_damaged", Message: fmt.Sprintf("the database was damaged at %s (%s); %s", r.Began.Format(time.DateTime), r.Cause, lost), Have: r.Kept,
		Change: "look at the disk and at the guests (autostart wishes may be lost); then take " + r.Kept + " away",
	}}
}

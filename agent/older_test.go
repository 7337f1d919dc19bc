package agent

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/agent/guard"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/migration"
)

// TestLedger_OfEveryOlderBerthIsRead starts an agent on state directories that agents of
// earlier versions have left (their own tests wrote them, by real moves). Neither libvirt nor the other
// host answers, so what is shown is what the file says. A version that is released adds its own.
func TestLedger_OfEveryOlderBerthIsRead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		state  string            // below testdata/ledgers
		guests map[string]uint64 // those that are here, with the epochs of their tokens
		moves  map[string]string // that the host conducted, by guest
	}{
		{"before-cold-moves", map[string]uint64{"stays": 1, "back": 3, "came": 2}, map[string]string{"left": "completed", "back": "completed"}},
		{"before-live-control", map[string]uint64{"stays": 1, "back": 3, "came": 2}, map[string]string{"left": "completed", "back": "completed", "resized": "finished"}},
	} {
		t.Run(tt.state, func(t *testing.T) {
			t.Parallel()
			c := settings(t, nowhere(t))
			c.Agent.Name = "host-a"
			unpack(t, filepath.Join("testdata", "ledgers", tt.state), c.Agent.StateDir)
			if err := guard.MarkManaged(c.Agent.StateDir); err != nil {
				t.Fatal(err)
			}
			var a *Agent
			o := agentOptions(t, c)
			o.made = func(made *Agent) { a = made }
			client, _ := start(t, o)
			if unread := a.tracker.Unread(); len(unread) > 0 {
				t.Errorf("records that cannot be read: %v", unread)
			}
			got := map[string]uint64{}
			for _, i := range a.tracker.Instances() {
				if i.Token.State == claims.TokenHere {
					got[i.Name] = i.Token.Epoch
				}
			}
			if diff := cmp.Diff(tt.guests, got); diff != "" {
				t.Errorf("guests (-want +got):\n%s", diff)
			}
			list, err := client.Migrations(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			moves := map[string]string{}
			for _, m := range list {
				moves[m.InstanceName] = string(m.Status)
			}
			if diff := cmp.Diff(tt.moves, moves); diff != "" {
				t.Errorf("moves (-want +got):\n%s", diff)
			}
			s, err := client.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range s.Conditions {
				if (part.Name == "ledger" || part.Name == "identity") && part.Health != api.HealthOK {
					t.Errorf("%s: %+v", part.Name, part)
				}
			}
		})
	}
}

// unpack copies a folder, in which large files are gzipped.
func unpack(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	packed, err := os.Open(filepath.Join(to, ledgerFile+".gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	z, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err = errors.Join(err, os.WriteFile(filepath.Join(to, ledgerFile), data, 0o600), os.Remove(packed.Name())); err != nil {
		t.Fatal(err)
	}
}

// backup is a host's database as it is now: read until it stands still.
func (p *pair) backup(on string) (restore func(path string)) {
	p.Helper()
	var data []byte
	p.until("the database stands still", func() bool {
		again, err := os.ReadFile(filepath.Join(p.options[on].Config.Agent.StateDir, ledgerFile))
		p.must(err)
		same := bytes.Equal(data, again)
		data = again
		return same
	})
	return func(path string) { p.must(os.WriteFile(path, data, 0o600)) }
}

// A backup of a ledger is whole and says what was so once. Guests have left since, come
// since, and been away and back: what it says of them is not believed.
func TestLedger_ABackupIsNotBelieved(t *testing.T) {
	t.Parallel()
	p := newPair(t, time.Hour)
	a := p.fleet.Host("host-a")
	stays, left, away, came := p.guest("host-a", "stays"), p.guest("host-a", "left"), p.guest("host-a", "away"), p.guest("host-b", "came")
	gone := p.guest("host-a", "gone") // without a trace
	// A definition that some hand keeps and puts back; it has Berth's mark.
	doc, err := a.XML(t.Context(), left, driver.Persistent)
	p.must(err)
	back := p.guest("host-a", "back")
	if m := p.finish("host-a", p.move(back, "host-a", "host-b")); m.Err() != nil {
		t.Fatal(m.Err())
	}
	restore := p.backup("host-a")
	for _, m := range [][3]string{{left, "host-a", "host-b"}, {gone, "host-a", "host-b"}, {away, "host-a", "host-b"}, {away, "host-b", "host-a"}, {came, "host-b", "host-a"}, {back, "host-b", "host-a"}} {
		if m := p.finish(m[1], p.move(m[0], m[1], m[2])); m.Err() != nil {
			t.Fatal(m.Err())
		}
	}
	p.must(a.Define(t.Context(), doc))
	want, other, held := p.ledger("host-a"), p.ledger("host-b"), p.held()

	p.damage("host-a", restore)
	got := p.ledger("host-a")
	if token := got[left].Token; token.State == claims.TokenHere {
		t.Errorf("the guest that has left: %+v", token)
	}
	if g := got[gone]; g.Token.State == claims.TokenHere || len(g.Claims) > 0 {
		t.Errorf("the guest of which nothing is here: %+v", g)
	}
	for _, id := range []string{left, gone} {
		delete(got, id)
		delete(want, id)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the ledger (-before +after):\n%s", diff)
	}
	if len(got[stays].Claims) != 1 || got[away].Token.Epoch != 3 || got[back].Token.Epoch != 3 {
		t.Errorf("the ledger: %+v", got)
	}
	if _, err := p.clients["host-a"].StartInstance(t.Context(), left); err == nil || errors.Is(err, fault.Internal) {
		t.Errorf("start of a guest that has left: %v", err)
	}
	if diff := cmp.Diff(other, p.ledger("host-b")); diff != "" {
		t.Errorf("the other ledger (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(held, p.held()); diff != "" {
		t.Errorf("allocations (-before +after):\n%s", diff)
	}
	if c := p.condition("host-a", "ledger"); !strings.Contains(c.Detail, "older copy") {
		t.Errorf("condition %+v, want it said", c)
	}
	for _, id := range []string{stays, left, gone, away, came, back} {
		if n := p.fleet.RunningCopies(id); n != 1 {
			t.Errorf("%s runs %d times", id, n)
		}
	}
	if m := p.finish("host-a", p.move(away, "host-a", "host-b")); m.Err() != nil {
		t.Fatal(m.Err())
	}
}

// A database that is taken away while the agent runs is no reason to end: what takes
// is refused, and the next start asks the others.
func TestLedger_IsReplacedWhileTheAgentRuns(t *testing.T) {
	t.Parallel()
	p := newPair(t, time.Hour)
	id := p.guest("host-a", "guest")
	want := p.ledger("host-a")
	path := filepath.Join(p.options["host-a"].Config.Agent.StateDir, ledgerFile)
	p.must(os.Rename(path, path+".elsewhere"))
	r := api.CreateInstance{}
	r.Name, r.Kernel, r.Flavor.Name, r.Flavor.VCPUs, r.Flavor.MemoryMB = "more", p.kernel, "small", 1, 64
	for range 2 {
		if _, err := p.clients["host-a"].CreateInstance(t.Context(), r); err == nil || !strings.Contains(err.Error(), "replaced") {
			t.Errorf("create: %v, want it refused with what became of the file", err)
		}
	}
	if c := p.condition("host-a", "ledger"); c.Health != api.HealthDegraded || c.Reasons[0].Code != "database_replaced" {
		t.Errorf("condition %+v", c)
	}
	p.damage("host-a", nil)
	if diff := cmp.Diff(want, p.ledger("host-a")); diff != "" {
		t.Errorf("the ledger (-before +after):\n%s", diff)
	}
	if p.fleet.RunningCopies(id) != 1 {
		t.Error("the guest does not run")
	}
}

// A backup that was taken in the middle of a move goes on with a move that is over, also
// where it was taken before the source had noted that its stream runs.
func TestLedger_ABackupOfAMoveUndoesNothing(t *testing.T) {
	t.Run("while the stream runs", func(t *testing.T) {
		t.Parallel()
		aBackupOfAMoveUndoesNothing(t, func(*testing.T, string) {})
	})
	t.Run("before the stream is noted", func(t *testing.T) {
		t.Parallel()
		aBackupOfAMoveUndoesNothing(t, func(t *testing.T, path string) {
			db, err := store.Open(path, store.Options{})
			if err != nil {
				t.Fatal(err)
			}
			all, err := db.List(t.Context(), "verbs")
			for key := range all {
				err = errors.Join(err, db.Delete(t.Context(), "verbs", key))
			}
			if err = errors.Join(err, db.Close()); err != nil || len(all) == 0 {
				t.Fatalf("forget %d verbs: %v", len(all), err)
			}
		})
	})
}

func aBackupOfAMoveUndoesNothing(t *testing.T, edit func(t *testing.T, path string)) {
	p := newPair(t, time.Hour)
	id := p.guest("host-a", "guest")
	move := p.move(id, "host-a", "host-b")
	restore := p.backup("host-a")
	if m := p.finish("host-a", move); m.Err() != nil {
		t.Fatal(m.Err())
	}
	other, held := p.ledger("host-b"), p.held()
	p.damage("host-a", func(path string) {
		restore(path)
		edit(t, path)
	})
	var m migration.Migration
	p.until("the move ends", func() bool {
		p.fleet.Advance(50 * time.Millisecond)
		var err error
		m, err = p.clients["host-a"].Migration(t.Context(), move)
		p.must(err)
		return m.Done() || m.Outcome == migration.OutcomeInDoubt
	})
	if m.Outcome == migration.OutcomeUndone {
		t.Errorf("the move that went well is told as %s: %v", m.Outcome, m.Err())
	}
	if token := p.ledger("host-a")[id].Token; token.State == claims.TokenHere {
		t.Errorf("the guest has two owners: %+v", token)
	}
	if diff := cmp.Diff(other, p.ledger("host-b")); diff != "" {
		t.Errorf("the other ledger (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(held, p.held()); diff != "" {
		t.Errorf("allocations (-before +after):\n%s", diff)
	}
	if p.fleet.RunningCopies(id) != 1 {
		t.Error("the guest does not run")
	}
}

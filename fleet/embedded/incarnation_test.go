package embedded_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"berth/fleet"
	"berth/fleet/embedded"
	"berth/fleet/fleettest"
	"berth/placement"
)

func TestEmbedded_TellsItsIncarnation(t *testing.T) { fleettest.TestIncarnations(t, inMemory) }

// TestEmbedded_AnEmptiedOrOlderDatabase_HasANewIncarnation: hosts recognise by it that records
// which they wrote may be lost.
func TestEmbedded_AnEmptiedOrOlderDatabase_HasANewIncarnation(t *testing.T) {
	dir := t.TempDir()
	db := filepath.Join(dir, "placement.db")
	var running *placement.Server
	serving := func(path string) fleet.Moment {
		t.Helper()
		running = serve(t, path)
		m, err := client(t, running).Moment(t.Context())
		if err != nil || m.Incarnation == "" {
			t.Fatalf("moment %+v, %v", m, err)
		}
		return m
	}
	stop := func() {
		t.Helper()
		if err := running.Close(); err != nil {
			t.Fatal(err)
		}
	}
	write := func(key string) {
		t.Helper()
		if err := client(t, running).Commit(t.Context(), nil, fleet.Change{Key: key, Value: []byte("1")}); err != nil {
			t.Fatal(err)
		}
	}
	first := serving(db)
	write("hosts/a")
	front := httptest.NewServer(running)
	backup := filepath.Join(dir, "backup.json")
	if err := placement.Backup(t.Context(), front.URL, nil, backup); err != nil {
		t.Fatal(err)
	}
	front.Close()
	stop()
	last := serving(db)
	if last.Incarnation != first.Incarnation {
		t.Errorf("a restart made another incarnation")
	}
	stop()
	old, err := os.ReadFile(db)
	if err != nil {
		t.Fatal(err)
	}
	serving(db)
	write("hosts/b")
	stop()

	if err := os.WriteFile(db, old, 0o600); err != nil { // put back, as a person does it
		t.Fatal(err)
	}
	copied := serving(db)
	stop()
	if copied.Incarnation == first.Incarnation {
		t.Error("a copy put back has the incarnation of before")
	}
	restored := filepath.Join(dir, "restored.db")
	if err := placement.Restore(t.Context(), backup, restored, silent); err != nil {
		t.Fatal(err)
	}
	if got := serving(restored); got.Incarnation == first.Incarnation || got.Incarnation == copied.Incarnation {
		t.Error("a restored backup has an incarnation of before")
	}
	stop()
	if err := os.Remove(db); err != nil {
		t.Fatal(err)
	}
	if got := serving(db); got.Incarnation == first.Incarnation || got.Incarnation == copied.Incarnation {
		t.Error("an emptied database has an incarnation of before")
	}
	if inMemory := serving(""); inMemory.Incarnation == serving("").Incarnation {
		t.Error("two servers in memory have one incarnation")
	}
}

// TestEmbedded_DatabaseRolledBackWithItsNotes_HasNotWhatWasLost: the file of its last commit was put
// back with it, as by a snapshot of the disk. Its clock takes the revisions past what was lost.
func TestEmbedded_DatabaseRolledBackWithItsNotes_HasNotWhatWasLost(t *testing.T) {
	ctx, db := t.Context(), filepath.Join(t.TempDir(), "placement.db")
	files := map[string][]byte{db: nil, db + ".latest": nil}
	var running *placement.Server
	restart := func() {
		t.Helper()
		if running != nil {
			if err := running.Close(); err != nil {
				t.Fatal(err)
			}
		}
		running = serve(t, db)
	}
	write := func() fleet.Moment {
		t.Helper()
		c := client(t, running)
		if err := c.Commit(ctx, nil, fleet.Change{Key: "hosts/a", Value: []byte("1")}); err != nil {
			t.Fatal(err)
		}
		m, err := c.Moment(ctx)
		if err != nil || m.Session == "" {
			t.Fatalf("moment %+v, %v", m, err)
		}
		return m
	}
	has := func(what string, m fleet.Moment, want bool) {
		t.Helper()
		if got, err := client(t, running).Has(ctx, m); got != want || err != nil {
			t.Errorf("%s: it has %t, %v", what, got, err)
		}
	}
	restart()
	first := write()
	has("in one run", first, true)
	restart()
	kept := write()
	if err := running.Close(); err != nil {
		t.Fatal(err)
	}
	for name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = content
	}
	restart()
	lost := write()
	restart()
	for what, m := range map[string]fleet.Moment{"the first run": first, "the second": kept, "the third": lost} {
		has("restarted, of "+what, m, true)
	}
	later := kept
	later.Revision++
	has("of a revision that a run never came to", later, false)
	if err := running.Close(); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	restart()
	if now := write(); now.Incarnation != lost.Incarnation || now.Revision <= lost.Revision {
		t.Fatalf("the test looks at nothing: %+v, had %+v", now, lost)
	}
	has("rolled back, of before", kept, true)
	has("rolled back, of what was lost", lost, false)
}

// late is a network on which the first answer arrives when the test lets it.
type late struct {
	inProcess
	asked   atomic.Int32
	there   chan struct{} // closed when the first answer was made
	release chan struct{}
}

func (n *late) RoundTrip(q *http.Request) (*http.Response, error) {
	a, err := n.inProcess.RoundTrip(q)
	if n.asked.Add(1) == 1 {
		close(n.there)
		<-n.release
	}
	return a, err
}

// TestClient_AnswerThatIsDelayed_TakesNothingBack: a later request was answered meanwhile, by the same
// server, or by another in its place.
func TestClient_AnswerThatIsDelayed_TakesNothingBack(t *testing.T) {
	for name, restarted := range map[string]bool{"by the same server": false, "by another": true} {
		t.Run(name, func(t *testing.T) {
			ctx, s := t.Context(), serve(t, "")
			n := &late{inProcess: inProcess{s}, there: make(chan struct{}), release: make(chan struct{})}
			c, err := embedded.NewClient(embedded.Options{URL: "http://placement", Token: "admin", Transport: n})
			if err != nil {
				t.Fatal(err)
			}
			over := make(chan error)
			go func() {
				_, err := c.List(ctx, "hosts/")
				over <- err
			}()
			<-n.there
			if restarted {
				n.handler = serve(t, "")
			}
			if err := client(t, n.handler).Commit(ctx, nil, fleet.Change{Key: "hosts/a", Value: []byte("1")}); err != nil {
				t.Fatal(err)
			}
			if _, err := c.List(ctx, "hosts/"); err != nil {
				t.Fatal(err)
			}
			want, err := c.Moment(ctx)
			if err != nil || want.Revision == 0 {
				t.Fatalf("moment %+v, %v", want, err)
			}
			close(n.release)
			if err := <-over; err != nil {
				t.Fatal(err)
			}
			if got, _ := c.Moment(ctx); got != want {
				t.Errorf("the delayed answer made %+v of %+v", got, want)
			}
		})
	}
}

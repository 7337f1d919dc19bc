package reporter_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth/agent/inventory"
	"berth/agent/reporter/reportertest"
	"berth/claims/pci"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/placement"
	"berth/placementclient"
	"berth/topology"
)

// instant does not wait.
type instant struct{ runtime.Runtime }

func (instant) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

// others is what Placement has of others than the reporter, and must keep.
type others struct {
	traits, aggregates []string
	classes            map[string]int64                     // on the root, by total
	children           map[string]bool                      // by uuid
	holders            map[string]placementclient.Resources // sums, by consumer
	ratio              float64                              // somebody's, of VCPU; 0 for none
}

func (o others) clone() others {
	o.traits, o.aggregates = slices.Clone(o.traits), slices.Clone(o.aggregates)
	o.classes, o.children, o.holders = maps.Clone(o.classes), maps.Clone(o.children), maps.Clone(o.holders)
	return o
}

// world is a bench whose Placement can be put back, with a model of what others
// have there.
type world struct {
	*reportertest.Bench
	t interface {
		Fatal(args ...any)
		Fatalf(format string, args ...any)
	}
	dir    string
	now    *placement.Server
	model  others
	backup struct {
		file  string
		model others
		held  map[string]inventory.Held
	}
	n int
}

func (w *world) serve(db string) {
	server, err := placement.New(placement.Options{Listen: "127.0.0.1:0", Logger: reportertest.Silent, DB: db})
	w.Must(err)
	if w.now != nil {
		w.Must(w.now.Close())
	}
	w.now = server
}

// RoundTrip leads to the server of now.
func (w *world) RoundTrip(r *http.Request) (*http.Response, error) {
	return handler{w.now}.RoundTrip(r)
}

func (w *world) takeBackup() {
	answer := httptest.NewRecorder()
	q := httptest.NewRequest(http.MethodGet, "/berth/backup", nil)
	q.Header.Set("X-Auth-Token", "admin")
	w.now.ServeHTTP(answer, q)
	body, err := io.ReadAll(answer.Result().Body)
	w.Must(err)
	w.n++
	w.backup.file = filepath.Join(w.dir, fmt.Sprint("backup", w.n))
	w.Must(os.WriteFile(w.backup.file, body, 0o600))
	w.backup.model, w.backup.held = w.model.clone(), maps.Clone(w.Held)
}

func (w *world) restore() {
	if w.backup.file == "" {
		return
	}
	w.n++
	db := filepath.Join(w.dir, fmt.Sprint("db", w.n))
	w.Must(placement.Restore(w.Context(), w.backup.file, db, reportertest.Silent))
	w.serve(db)
	w.model, w.Held = w.backup.model.clone(), maps.Clone(w.backup.held)
	clear(w.Moving)
}

// operator does something to the tree that is not Berth's, if the root is there.
func (w *world) operator(what int) {
	if _, err := w.Theirs.Provider(w.Context(), w.Root); err != nil {
		return
	}
	w.n++
	switch what {
	case 0:
		trait := fmt.Sprint("CUSTOM_TRAIT_", w.n)
		w.AddTraits(w.Root, trait)
		w.model.traits = append(w.model.traits, trait)
	case 1:
		class := fmt.Sprint("CUSTOM_CLASS_", w.n)
		w.PutInventory(w.Root, class, placementclient.Inventory{Total: int64(w.n)})
		w.model.classes[class] = int64(w.n)
	case 2:
		w.model.aggregates = append(w.model.aggregates, w.ID(fmt.Sprint("aggregate", w.n)))
		w.PutAggregates(w.Root, w.model.aggregates...)
	case 3:
		child := w.ID(fmt.Sprint("foreign", w.n))
		_, err := w.Theirs.CreateProvider(w.Context(), placementclient.NewProvider{UUID: child, Name: fmt.Sprint(w.Name, "-foreign", w.n), ParentProviderUUID: w.Root})
		w.Must(err)
		w.model.children[child] = true
	case 4:
		if now, stands := w.Inventories(w.Root)[placementclient.ClassVCPU]; stands {
			now.AllocationRatio = 5 // above what is given away, so that Placement takes it
			w.PutInventory(w.Root, placementclient.ClassVCPU, now)
			w.model.ratio = now.AllocationRatio
		}
	}
}

// guest lets a consumer hold something where the tree says; Placement may refuse.
func (w *world) guest(kind string) {
	tree, known := w.R.Tree()
	if !known {
		return
	}
	w.n++
	id := w.ID(fmt.Sprint("consumer", w.n))
	h := reportertest.Claimed(1, 64, 1)
	h.Consumer = id
	place := tree.Place(h, nil)
	err := w.Theirs.PutAllocations(w.Context(), id, placementclient.Allocations{Allocations: place, ProjectID: "p", UserID: "u", ConsumerType: kind})
	switch {
	case err == nil:
	case errors.Is(err, fault.DoesNotFit), errors.Is(err, fault.Invalid), errors.Is(err, fault.Busy):
		return
	default:
		w.t.Fatal(err)
	}
	if kind == placementclient.ConsumerInstance {
		w.Held[id] = h
	}
	w.model.holders[id] = w.Sum(id)
}

// check requires what others have to be as they left it.
func (w *world) check() {
	if _, err := w.Theirs.Provider(w.Context(), w.Root); err != nil {
		return
	}
	traits, inventories := w.Traits(w.Root), w.Inventories(w.Root)
	for _, t := range w.model.traits {
		if !slices.Contains(traits, t) {
			w.t.Fatalf("somebody's trait %s is gone: %v", t, traits)
		}
	}
	for class, n := range w.model.classes {
		if inventories[class].Total != n {
			w.t.Fatalf("somebody's inventory of %s is %+v", class, inventories[class])
		}
	}
	got, err := w.Theirs.Aggregates(w.Context(), w.Root)
	w.Must(err)
	for _, a := range w.model.aggregates {
		if !slices.Contains(got.Aggregates, a) {
			w.t.Fatalf("somebody's aggregate %s is gone", a)
		}
	}
	for child := range w.model.children {
		if p, err := w.Theirs.Provider(w.Context(), child); err != nil || p.ParentProviderUUID != w.Root {
			w.t.Fatalf("somebody's child is %+v, %v", p, err)
		}
	}
	for id, want := range w.model.holders {
		if got := w.Sum(id); !maps.Equal(got, want) {
			w.t.Fatalf("consumer %s holds %v, want %v", id, got, want)
		}
	}
}

// disturb has a part of the requests fail in every way there is.
func (w *world) disturb(t *rapid.T) {
	fails := rapid.SliceOfN(rapid.IntRange(0, 15), 24, 24).Draw(t, "what happens to requests")
	at := 0
	next := func() int {
		at++
		if at > len(fails) {
			return 15
		}
		return fails[at-1]
	}
	var before int
	w.Wire.Disturb(func(r *http.Request) error {
		before = next()
		switch {
		case before == 0:
			return errors.New("connection reset by peer")
		case before <= 3 && r.Method != http.MethodGet:
			w.operator(before) // a second writer was faster
		case before == 4 && r.Method != http.MethodGet:
			w.guest(placementclient.ConsumerInstance)
		}
		return nil
	}, func(*http.Request) error {
		if before == 5 {
			return errors.New("connection reset by peer")
		}
		return nil
	})
}

// hosts are what the machine may become.
func (w *world) change(what int) {
	in := &w.In
	switch what {
	case 0:
		in.Shape = map[inventory.Shape]inventory.Shape{inventory.Flat: inventory.Nested, inventory.Nested: inventory.Flat, "": inventory.Nested}[in.Shape]
	case 1:
		h := *in.Host
		h.Cells = slices.Clone(h.Cells)
		h.Cells[0].MemoryBytes ^= 1 << 30
		in.Host = &h
	case 2:
		vf := topology.PCIAddress{Bus: 0x3b, Function: 1}
		if in.Devices == nil {
			in.Devices = []pci.Device{{
				Address: vf, Type: topology.PCITypeVF, Parent: &topology.PCIAddress{Bus: 0x3b}, Cell: 1, Managed: true, Tags: map[string]string{pci.TagResourceClass: "CUSTOM_NIC"},
			}}
		} else {
			in.Devices = nil
		}
	case 3:
		in.Disabled = !in.Disabled
	case 4:
		if in.Config == nil {
			in.Config = []inventory.ProviderConfig{{
				Where: "a.yaml:1", UUID: inventory.ComputeNode, Inventories: map[string]placementclient.Inventory{"CUSTOM_OF_FILE": {Total: 2}}, Traits: []string{"CUSTOM_OF_FILE"},
			}}
		} else {
			in.Config = nil
		}
	case 5:
		in.Holding = !in.Holding
	case 6:
		in.DiskGB ^= 16
	}
}

// TestReporter_ConvergesAfterAnything: whatever is lost, comes twice, is written by
// others in between or is put back to an older state, in the end Placement says what
// the host is, what others have there is as they left it, and nothing is written any
// more.
func TestReporter_ConvergesAfterAnything(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		story(t, rt, dir)
	})
}

func newWorld(t *testing.T, dir string, v placementclient.Microversion) *world {
	t.Helper()
	w := &world{t: t, dir: dir, model: others{classes: map[string]int64{}, children: map[string]bool{}, holders: map[string]placementclient.Resources{}}}
	w.Bench = reportertest.New(t, w, v)
	w.Options.Runtime = instant{&runtime.System{}}
	w.Restart()
	w.serve("")
	return w
}

func story(t *testing.T, rt *rapid.T, dir string) {
	// Mostly the newest; 1.28 has no reshaper, and 1.30 gives nobody another parent.
	v := rapid.SampledFrom([]placementclient.Microversion{39, 39, 39, 30, 28}).Draw(rt, "microversion")
	w := newWorld(t, dir, v)
	w.t = rt
	defer func() { w.Must(w.now.Close()) }()
	for range rapid.IntRange(4, 16).Draw(rt, "steps") {
		switch step := rapid.IntRange(0, 20).Draw(rt, "step"); step {
		case 0, 1, 2, 3:
			w.disturb(rt)
			_ = w.R.Sync(w.Context()) // it may fail; what is left is the next one's
			w.Wire.Disturb(nil, nil)
		case 4, 5:
			_ = w.R.Sync(w.Context()) // a reshape may be refused
		case 6:
			w.Restart()
		case 7, 8, 9, 10:
			w.operator(step - 7)
		case 20:
			w.operator(4)
		case 11:
			w.guest(placementclient.ConsumerInstance)
		case 12:
			w.guest(placementclient.ConsumerMigration)
		case 13:
			if w.backup.file == "" {
				w.takeBackup()
			}
		case 14:
			w.restore()
		default:
			w.change(rapid.IntRange(0, 6).Draw(rt, "change"))
		}
		w.check()
	}
	w.In.Holding = false
	clear(w.Moving)
	var last error
	for range 40 {
		last = w.R.Sync(w.Context())
	}
	s := w.R.Status()
	if last != nil || !s.InSync {
		rt.Fatalf("after 40 quiet intervals: %v, %+v", last, s)
	}
	if s.Waiting != nil {
		if code := s.Waiting.Reason.Code; v == 39 || code != "reshaper_missing" && code != "reparent_missing" {
			rt.Fatalf("at %s, after 40 quiet intervals: %+v", v, s)
		}
		w.In.Shape = s.Shape // which the host keeps to then
	}
	w.check()
	if d := w.Different(); d != "" {
		rt.Fatal(d)
	}
	for _, name := range []string{"CUSTOM_OF_FILE", placementclient.TraitComputeStatusDisabled} {
		want := name == "CUSTOM_OF_FILE" && w.In.Config != nil || strings.HasPrefix(name, "COMPUTE") && w.In.Disabled
		if got := slices.Contains(w.Traits(w.Root), name); got != want {
			rt.Fatalf("trait %s stands: %t, want %t", name, got, want)
		}
	}
	if _, got := w.Inventories(w.Root)["CUSTOM_OF_FILE"]; got != (w.In.Config != nil) {
		rt.Fatalf("the class of the provider config file stands: %t", got)
	}
	tree, _ := w.R.Tree()
	for _, p := range tree.Providers {
		if v, has := p.Inventories[placementclient.ClassVCPU]; has && w.model.ratio > 0 && v.AllocationRatio != w.model.ratio {
			rt.Fatalf("somebody's ratio %v is %v on %s", w.model.ratio, v.AllocationRatio, p.Name)
		}
	}
	for id, h := range w.Held {
		if !tree.Agrees(h, w.Holds(id)) {
			rt.Fatalf("guest %s holds %v, which is not its claim's place", id, w.Holds(id))
		}
	}
	w.Steady(12)
}

// TestReporter_ABackupDoesNotBringBackWhatWasTakenOut: what Berth gave last night
// and has taken out since is Berth's to take out again.
func TestReporter_ABackupDoesNotBringBackWhatWasTakenOut(t *testing.T) {
	w := newWorld(t, t.TempDir(), placementclient.MaxMicroversion)
	defer func() { w.Must(w.now.Close()) }()
	w.change(3) // disabled
	w.change(4) // a provider config file
	w.Sync()
	w.takeBackup()
	w.change(3)
	w.change(4)
	w.Sync()
	w.Steady(3)
	w.restore()
	w.Restart()
	w.Sync()
	if got := w.Traits(w.Root); slices.Contains(got, placementclient.TraitComputeStatusDisabled) || slices.Contains(got, "CUSTOM_OF_FILE") {
		t.Errorf("a backup brought back %v", got)
	}
	if _, there := w.Inventories(w.Root)["CUSTOM_OF_FILE"]; there {
		t.Error("a backup brought back the class of a file")
	}
	// From now on it is somebody else's.
	w.Steady(3)
	w.AddTraits(w.Root, placementclient.TraitComputeStatusDisabled)
	for range 30 {
		w.Sync()
	}
	if got := w.Traits(w.Root); !slices.Contains(got, placementclient.TraitComputeStatusDisabled) {
		t.Errorf("what somebody else set was taken away: %v", got)
	}
}

// TestReporter_FindsOtherContentBehindEqualGenerations: a Placement that was
// restored and written since may show the generation that was seen last.
func TestReporter_FindsOtherContentBehindEqualGenerations(t *testing.T) {
	w := newWorld(t, t.TempDir(), placementclient.MaxMicroversion)
	defer func() { w.Must(w.now.Close()) }()
	w.Sync()
	w.takeBackup()
	w.AddTraits(w.Root, "CUSTOM_RACK_7")
	for range 8 {
		w.Sync()
	}
	seen, err := w.Theirs.Provider(w.Context(), w.Root)
	w.Must(err)
	w.restore()
	now, err := w.Theirs.Traits(w.Context(), w.Root)
	w.Must(err)
	now.Traits = []string{}
	if now, err = w.Theirs.PutTraits(w.Context(), w.Root, now); err != nil || now.Generation != seen.Generation {
		t.Fatalf("generation %d, %v; want %d as seen before", now.Generation, err, seen.Generation)
	}
	for interval := range 4 * 3 {
		w.Sync()
		if slices.Contains(w.Traits(w.Root), placementclient.TraitComputeNode) {
			t.Logf("found after %d intervals", interval+1)
			return
		}
	}
	t.Errorf("not found: %v", w.Traits(w.Root))
}

// TestReporter_ReportsAnewToAPlacementThatWasWiped while the agent runs, in one
// comparison; and from then on what somebody sets there is theirs, also where Berth
// had once given the same and taken it out.
func TestReporter_ReportsAnewToAPlacementThatWasWiped(t *testing.T) {
	w := newWorld(t, t.TempDir(), placementclient.MaxMicroversion)
	defer func() { w.Must(w.now.Close()) }()
	w.change(3) // disabled
	w.Sync()
	w.change(3)
	w.change(4) // a provider config file
	w.change(0) // nested
	for range 20 {
		w.operator(1)
		w.Sync()
	}
	w.serve("")
	w.Sync()
	w.Equal()
	w.Restart()
	w.Sync()
	w.AddTraits(w.Root, placementclient.TraitComputeStatusDisabled)
	for range 30 {
		w.Sync()
	}
	if got := w.Traits(w.Root); !slices.Contains(got, placementclient.TraitComputeStatusDisabled) {
		t.Errorf("what somebody else set was taken away: %v", got)
	}
}

package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/agent/host/disks/diskstest"
	"berth/claims"
	"berth/driver"
	"berth/driver/drivertest"
	"berth/fleet"
	"berth/fleet/fleettest"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

const sharedFile = "/shared/data.raw"

// evacuation is a guest of a, which dies, and that b takes by the verbs that a conductor asks of
// it; the fleet's records are real, and their store is in memory.
type evacuation struct {
	*lab
	t       *testing.T
	ref     migration.Ref
	b       *node
	world   *diskstest.World
	store   *fleettest.Memory
	records *fleet.Records    // of who looks on
	client  *fleettest.Client // by which b reaches them
	request migration.EvacuationRequest
	source  migration.Description
	taken   fleet.TakeOver
	silence time.Duration // of the conductor
}

// newEvacuation has a guest on a with a disk that b shares and one that it does not, both written
// to, and kills a.
func newEvacuation(t *testing.T, power driver.State) *evacuation {
	t.Helper()
	e := &evacuation{lab: newLab(t, "a", "b"), t: t, world: diskstest.NewWorld(), silence: time.Hour}
	e.world.Share("/shared", "a", "b")
	e.fleet.SetStorage(func(host string) drivertest.Storage { return e.world.Host(host) })
	for _, name := range []string{"a", "b"} {
		e.hosts[name].files = e.world.Host(name)
		e.hosts[name].Close()
		e.world.Host(name).Put(baseImage, "qcow2", 1<<30, "system")
	}
	e.store = fleettest.NewMemory(e.rt)
	e.records, e.client = fleet.New(e.store.Client("test"), e.rt), e.store.Client("b")
	a := e.boot("a", func(o *host.Options) { o.ImagesDirs = nil })
	v, err := a.Create(t.Context(), host.CreateRequest{
		Name: "vm", Flavor: small, ProjectID: "project", UserID: "user", Start: power != driver.ShutOff, Paused: power == driver.Paused,
		Disks: []host.CreateDisk{{Path: rootFile, Image: baseImage, SizeGB: 1}, {Path: sharedFile, SizeGB: 1, Format: "raw"}},
	})
	e.must("create", err)
	e.world.Host("a").Write(rootFile, "system, written to")
	e.world.Host("a").Write(sharedFile, "data")
	e.source, err = a.Describe(t.Context())
	e.must("describe", err)
	g, err := operation.Inspect.Ask(t.Context(), a, migration.Ref{Instance: v.UUID})
	e.must("inspect", err)
	e.ref, e.request = refFor(v.UUID, 1), migration.EvacuationRequest{Guest: g, Source: "a", AcceptLoss: true}
	text, err := json.Marshal(g)
	e.must("write its record", err)
	_, err = e.records.PutInstance(t.Context(), fleet.Instance{UUID: v.UUID, Name: "vm", Host: "a", Epoch: g.Epoch, Guest: text})
	e.must("put its record", err)
	// The machine is off: nothing of it runs, and nobody asks its agent.
	if power != driver.ShutOff {
		e.must("pull the plug", a.fake.Destroy(t.Context(), v.UUID))
	}
	a.Close()
	e.must("put its host", e.records.PutHost(t.Context(), fleet.Host{Name: "a", ProviderUUID: "rp-a", Boot: "boot-1"}))
	_, err = e.records.DeclareDead(t.Context(), fleet.Death{Host: "a", Proof: fleet.ProofFenced, By: "test", Because: "it is off"})
	e.must("declare dead", err)
	e.start()
	return e
}

func (e *evacuation) start() { e.b = e.boot("b", e.options) }

func (e *evacuation) options(o *host.Options) {
	o.Records, o.Silence, o.ConductorSilence = fleet.New(e.client, e.rt), time.Nanosecond, e.silence
	o.ImagesDirs = []string{"/images", "/shared"}
}

// crash ends b's agent as kill -9 does, and starts it again.
func (e *evacuation) crash() {
	e.b.Close()
	e.b.store = e.b.store.Crash()
	e.start()
}

// heal ends what a test has broken.
func (e *evacuation) heal() {
	e.world.OnStep(nil)
	e.b.store.OnCommit(nil)
	e.b.fake.Fault(nil)
	e.b.fake.FaultReply(nil)
	e.client.Before = nil
}

func (e *evacuation) check() (migration.CheckAnswer, error) {
	return operation.CheckDestination.Ask(e.t.Context(), e.b, e.ref, migration.CheckRequest{Guest: e.request.Guest, Source: e.source, Kind: migration.TypeEvacuation})
}

func (e *evacuation) claim() error {
	g := e.request.Guest
	_, err := operation.Claim.Ask(e.t.Context(), e.b, e.ref, migration.ClaimRequest{Guest: g, Lease: time.Minute, Kind: migration.TypeEvacuation, Context: migration.Context{
		Source: "a", Destination: "b", Conductor: "c", OldResources: g.Resources, NewResources: g.Resources, OldFlavor: g.Flavor, NewFlavor: g.Flavor, PowerState: g.PowerState,
	}})
	return err
}

// takeOver gives the guest to b, as its conductor does by what it has read before.
func (e *evacuation) takeOver() error { return e.takeOverBy(e.ref) }

func (e *evacuation) takeOverBy(ref migration.Ref) error {
	ctx := e.t.Context()
	if e.taken.Record == 0 {
		in, record, err := e.records.Instance(ctx, e.ref.Instance)
		if err != nil {
			return err
		}
		_, death, err := e.records.Dead(ctx, "a")
		if err != nil {
			return err
		}
		e.taken = fleet.TakeOver{
			Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, Source: "a", To: "b", Epoch: in.Epoch, Record: record, Death: death,
		}
	}
	_, err := e.records.TakeOver(ctx, e.taken)
	return err
}

func (e *evacuation) commit() migration.Commit {
	return migration.Commit{Instance: e.ref.Instance, Migration: e.ref.Migration, Attempt: e.ref.Attempt, Epoch: e.request.Guest.Epoch + 1, From: "a", To: "b"}
}

// prepared are the verbs that can be undone, and finished those after the hand-over.
func (e *evacuation) prepared() []step {
	ctx := e.t.Context()
	return []step{
		{"check", func() error { _, err := e.check(); return err }, nil},
		{"claim", e.claim, func() error { return operation.AbortClaim.Ask(ctx, e.b, e.ref) }},
		{"prep evacuation", func() error { _, err := operation.PrepEvacuation.Ask(ctx, e.b, e.ref, e.request); return err }, func() error { return operation.RollbackPrepEvacuation.Ask(ctx, e.b, e.ref) }},
	}
}

func (e *evacuation) finished() []step {
	ctx := e.t.Context()
	return []step{
		{"take over", e.takeOver, nil},
		{"accept evacuated", func() error { return operation.AcceptEvacuated.Ask(ctx, e.b, e.ref, e.commit()) }, nil},
		{"finish evacuation", func() error { _, err := operation.FinishEvacuation.Ask(ctx, e.b, e.ref); return err }, nil},
	}
}

func (e *evacuation) all(steps []step) {
	e.t.Helper()
	for _, s := range steps {
		e.must(s.name, s.do())
		e.must(s.name+" again", s.do())
	}
}

// lives wants the guest on b, as it was and once.
func (e *evacuation) lives(want driver.State) {
	e.t.Helper()
	e.state("b", e.ref.Instance, want)
	inst, _ := e.b.tracker.Instance(e.ref.Instance)
	if inst.Token.State != claims.TokenHere || inst.Token.Epoch != 2 || inst.Token.Migration != e.ref.Migration {
		e.t.Errorf("token %+v, want it here with epoch 2 by the migration", inst.Token)
	}
	if diff := cmp.Diff(map[string]claims.Image{"vda": {Path: baseImage, Format: "qcow2"}, "vdb": {}}, inst.Images); diff != "" {
		e.t.Errorf("images (-want +got):\n%s", diff)
	}
	claim, ok := e.b.tracker.ByOwner(claims.Owner{Instance: e.ref.Instance, Kind: claims.KindInstance})
	if !ok || claim.State != claims.Bound {
		e.t.Errorf("claim: %v %+v", ok, claim)
	}
	files := e.world.Host("b")
	if data, _, _ := files.Data(sharedFile); data != "data" {
		e.t.Errorf("the shared disk has %q, want what was written to it", data)
	}
	if data, size, _ := files.Data(rootFile); data != "system" || size != 1<<30 {
		e.t.Errorf("the disk that was made has %q and %d bytes, want the image's and the guest's size", data, size)
	}
	for _, path := range files.List() {
		if path != "/images" && path != "/shared" && !slices.Contains([]string{baseImage, rootFile, sharedFile}, path) {
			e.t.Errorf("left: %s", path)
		}
	}
	if marked := files.Marked(); len(marked) > 0 {
		e.t.Errorf("still marked as the migration's: %v", marked)
	}
}

func TestEvacuation_GivesTheGuestItsPowerState(t *testing.T) {
	for _, power := range []driver.State{driver.Running, driver.Paused, driver.ShutOff} {
		t.Run(string(power), func(t *testing.T) {
			t.Parallel()
			e := newEvacuation(t, power)
			e.all(e.prepared())
			if data, _, _ := e.world.Host("b").Data(sharedFile); data != "data" {
				t.Errorf("the shared disk was touched before the token was here: %q", data)
			}
			if _, err := e.b.fake.Domain(t.Context(), e.ref.Instance); !errors.Is(err, fault.NotFound) {
				t.Errorf("it is defined before the token is here: %v", err)
			}
			e.all(e.finished())
			e.lives(power)
			f, err := operation.FinishEvacuation.Ask(t.Context(), e.b, e.ref)
			if want := (migration.FinishedEvacuation{Started: power != driver.ShutOff}); err != nil || f != want {
				t.Errorf("finished: %+v, %v, want %+v", f, err, want)
			}
		})
	}
}

func TestEvacuation_StoppedStaysOff(t *testing.T) {
	e := newEvacuation(t, driver.Running)
	e.request.Stopped = true
	e.all(e.prepared())
	e.all(e.finished())
	e.lives(driver.ShutOff)
}

func TestEvacuation_TellsWhichDisksAreTheVeryOnes(t *testing.T) {
	e := newEvacuation(t, driver.Running)
	a, err := e.check()
	e.must("check", err)
	shared := map[string]bool{}
	for _, d := range a.Disks {
		shared[d.Target] = d.Shared
	}
	if diff := cmp.Diff(map[string]bool{"vda": false, "vdb": true}, shared); diff != "" {
		t.Errorf("shared (-want +got):\n%s", diff)
	}
	e.must("claim", e.claim())
	got, err := operation.PrepEvacuation.Ask(t.Context(), e.b, e.ref, e.request)
	e.must("prepare", err)
	if diff := cmp.Diff(migration.PreparedEvacuation{Shared: []string{"vdb"}, Made: []string{"vda"}}, got); diff != "" {
		t.Errorf("prepared (-want +got):\n%s", diff)
	}
}

func TestEvacuation_RefusesWithEveryDisk(t *testing.T) {
	unknown := func(e *evacuation) { e.request.Guest.Disks[0].Image = nil }
	for _, c := range []struct {
		name   string
		change func(e *evacuation)
		check  []string // of the check; what who conducts it knows is told with the claim only
		prep   []string
	}{
		{"data would be lost", func(e *evacuation) { e.request.AcceptLoss = false }, nil, []string{"data_would_be_lost"}},
		{"nobody knows its image", unknown, nil, []string{"disk_unreachable"}},
		{"its image is not here", func(e *evacuation) { e.world.Host("b").Rename(baseImage, "/images/moved") }, []string{"image_missing"}, []string{"image_missing"}},
		{"another file has its place", func(e *evacuation) { e.world.Host("b").Put(rootFile, "qcow2", 1, "whose?") }, []string{"disk_exists"}, []string{"disk_exists"}},
		{"not one of the disks is there", func(e *evacuation) {
			unknown(e)
			e.world.Share("/elsewhere", "b")
			e.request.Guest.Disks[1].Filesystem, e.request.AcceptLoss = "another", false
		}, []string{"disk_exists"}, []string{"data_would_be_lost", "disk_exists", "disk_unreachable"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := newEvacuation(t, driver.Running)
			c.change(e)
			before := e.picture()
			_, err := e.check()
			if diff := cmp.Diff(c.check, codes(err)); diff != "" {
				t.Errorf("check (-want +got):\n%s", diff)
			}
			e.must("claim", e.claim())
			_, err = operation.PrepEvacuation.Ask(t.Context(), e.b, e.ref, e.request)
			if diff := cmp.Diff(c.prep, codes(err)); diff != "" {
				t.Errorf("prepare (-want +got):\n%s", diff)
			}
			e.undo()
			e.same("after it was refused", before)
		})
	}
}

func (e *evacuation) undo() {
	e.t.Helper()
	for _, s := range slices.Backward(e.prepared()) {
		if s.undo != nil {
			e.must("undo "+s.name, s.undo())
			e.must("undo "+s.name+" again", s.undo())
		}
	}
}

func TestEvacuation_AnImageThatIsNamedMakesTheFirstDisk(t *testing.T) {
	e := newEvacuation(t, driver.Running)
	e.request.Guest.Disks[0].Image = nil
	e.world.Host("b").Put("/images/named.raw", "raw", 1<<20, "system")
	e.request.Image = &migration.Image{Path: "/images/named.raw"}
	e.all(e.prepared())
	e.all(e.finished())
	if data, _, _ := e.world.Host("b").Data(rootFile); data != "system" {
		t.Errorf("the disk has %q, want the image's", data)
	}
}

func TestEvacuation_BelievesTheRecordsAlone(t *testing.T) {
	e := newEvacuation(t, driver.Running)
	e.all(e.prepared())
	err := operation.AcceptEvacuated.Ask(t.Context(), e.b, e.ref, e.commit())
	e.wantKind("accept what was not given", err, fault.Forbidden)
	if diff := cmp.Diff([]string{"not_given"}, codes(err)); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
	e.store.SetDown(true)
	e.wantKind("accept without the records", operation.AcceptEvacuated.Ask(t.Context(), e.b, e.ref, e.commit()), fault.Unavailable)
	e.wantKind("roll back without the records", operation.RollbackPrepEvacuation.Ask(t.Context(), e.b, e.ref), fault.Unavailable)
	e.store.SetDown(false)
	e.must("take over", e.takeOver())
	wrong := e.commit()
	wrong.Epoch++
	e.wantKind("accept another epoch", operation.AcceptEvacuated.Ask(t.Context(), e.b, e.ref, wrong), fault.Forbidden)
	e.wantKind("roll back what was given", operation.RollbackPrepEvacuation.Ask(t.Context(), e.b, e.ref), fault.Forbidden)
	_, err = operation.FinishEvacuation.Ask(t.Context(), e.b, e.ref)
	e.wantKind("finish what was not accepted", err, fault.Forbidden)
	// No refusal has left a trace.
	e.all(e.finished())
	e.lives(driver.Running)
	e.wantKind("roll back a guest that is here", operation.RollbackPrepEvacuation.Ask(t.Context(), e.b, e.ref), fault.Forbidden)
	e.wantKind("abort its claim", operation.AbortClaim.Ask(t.Context(), e.b, e.ref), fault.Forbidden)
	// Nor once the records say nothing of it any more.
	e.must("drop its record", e.records.DropInstance(t.Context(), e.ref.Instance, "b", 2))
	e.wantKind("roll back a guest that is here and has no record", operation.RollbackPrepEvacuation.Ask(t.Context(), e.b, e.ref), fault.Forbidden)
	e.lives(driver.Running)
}

// What an instance stands on is read before it is over, also where it was off: its user starts it.
func TestEvacuation_AnInstanceThatWasOffIsReadToo(t *testing.T) {
	e := newEvacuation(t, driver.ShutOff)
	e.all(e.prepared())
	e.all(e.finished()[:2])
	e.b.Close()
	e.b = e.boot("b", func(o *host.Options) {
		e.options(o)
		o.ImagesDirs, o.Allowed = nil, func() host.Allowed { return host.Allowed{} }
	})
	lives, err := operation.FinishEvacuation.Ask(t.Context(), e.b, e.ref)
	e.must("finish", err)
	if lives.Started || !strings.Contains(lives.NotStarted, sharedFile) {
		t.Errorf("%+v, want it told that %s is not allowed", lives, sharedFile)
	}
	e.state("b", e.ref.Instance, driver.ShutOff)
}

// A guest that cannot start is this host's all the same, and its conductor is told why.
func TestEvacuation_AGuestThatCannotStartIsHere(t *testing.T) {
	e := newEvacuation(t, driver.Running)
	e.all(e.prepared())
	e.all(e.finished()[:2])
	e.b.fake.Fault(func(call, _ string) error {
		if call == "Start" {
			return fault.New(fault.Internal, "no such emulator")
		}
		return nil
	})
	f, err := operation.FinishEvacuation.Ask(t.Context(), e.b, e.ref)
	e.must("finish", err)
	if f.Started || f.NotStarted != "no such emulator" {
		t.Errorf("finished: %+v, want why it is off", f)
	}
	e.b.fake.Fault(nil)
	again, err := operation.FinishEvacuation.Ask(t.Context(), e.b, e.ref)
	if err != nil || again != f {
		t.Errorf("again: %+v, %v, want %+v", again, err, f)
	}
	e.lives(driver.ShutOff)
	e.must("start it", e.b.Start(t.Context(), e.ref.Instance, false))
	e.state("b", e.ref.Instance, driver.Running)
}

// looks has b look after what comes until done says that it is over.
func (e *evacuation) looks(done func() bool) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), patience)
	defer cancel()
	over := make(chan error, 1)
	go func() { over <- e.b.FollowSides(ctx) }()
	for !done() && ctx.Err() == nil {
		_ = e.rt.Sleep(ctx, time.Millisecond)
	}
	if ctx.Err() != nil {
		e.t.Errorf("it waits: %+v", e.b.Waiting())
	}
	cancel()
	<-over
}

func (e *evacuation) waitsFor(word string) func() bool {
	return func() bool {
		w := e.b.Waiting()
		return len(w) == 1 && w[0].Instance == e.ref.Instance && len(w[0].For) >= len(word) && w[0].For[:len(word)] == word
	}
}

func TestEvacuation_AloneItFinishesWhatItWasGiven(t *testing.T) {
	for _, accepted := range []bool{false, true} {
		e := newEvacuation(t, driver.Running)
		e.all(e.prepared())
		e.must("take over", e.takeOver())
		if accepted {
			e.must("accept", e.finished()[1].do())
		}
		e.crash()
		e.looks(func() bool {
			d, err := e.b.fake.Domain(t.Context(), e.ref.Instance)
			_, bound := e.b.tracker.ByOwner(claims.Owner{Instance: e.ref.Instance, Kind: claims.KindInstance})
			return err == nil && d.Active() && bound && len(e.world.Host("b").Marked()) == 0
		})
		e.lives(driver.Running)
		// The conductor comes back, and hears what has become of it.
		e.all(e.finished())
	}
}

func TestEvacuation_AloneItTakesBackWhatItIsNeverGiven(t *testing.T) {
	for name, never := range map[string]func(e *evacuation){
		"its host is back": func(e *evacuation) {
			_, err := e.records.Return(e.t.Context(), "a", "boot-2")
			e.must("return", err)
		},
		"another host has it": func(e *evacuation) {
			e.must("look", func() error {
				in, record, err := e.records.Instance(e.t.Context(), e.ref.Instance)
				if err != nil {
					return err
				}
				_, death, err := e.records.Dead(e.t.Context(), "a")
				if err != nil {
					return err
				}
				_, err = e.records.TakeOver(e.t.Context(), fleet.TakeOver{
					Instance: e.ref.Instance, Migration: "33333333-3333-4333-8333-333333333333", Attempt: 1, Source: "a", To: "c", Epoch: in.Epoch, Record: record, Death: death,
				})
				return err
			}())
		},
		"its host was back, has it anew and is lost again": func(e *evacuation) {
			ctx := e.t.Context()
			_, err := e.records.Return(ctx, "a", "boot-2")
			e.must("return", err)
			_, err = e.records.PutInstance(ctx, fleet.Instance{UUID: e.ref.Instance, Name: "vm", Host: "a", Epoch: 3, Guest: json.RawMessage("{}")})
			e.must("put its record", err)
			_, err = e.records.DeclareDead(ctx, fleet.Death{Host: "a", Proof: fleet.ProofFenced, By: "test", Because: "it is off again"})
			e.must("declare dead", err)
		},
		"another attempt has brought it here": func(e *evacuation) {
			other := e.ref
			other.Attempt = 2
			e.must("take over", e.takeOverBy(other))
		},
		"it was deleted": func(e *evacuation) { e.must("drop", e.records.DropInstance(e.t.Context(), e.ref.Instance, "a", 1)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEvacuation(t, driver.Running)
			before := e.picture()
			e.all(e.prepared())
			never(e)
			e.looks(func() bool { return len(e.b.tracker.List()) == 0 })
			e.same("after it took back what it had", before)
			e.wantKind("a late preparation", e.prepared()[2].do(), fault.Forbidden)
		})
	}
}

// Its conductor may have the guest given to it for as long as it is not silent for too long; then
// the attempt is given up first, so that what the conductor sends late does nothing.
func TestEvacuation_AloneItGivesUpBeforeItTakesBack(t *testing.T) {
	e := newEvacuation(t, driver.Running)
	before := e.picture()
	e.all(e.prepared())
	in, record, err := e.records.Instance(t.Context(), e.ref.Instance)
	e.must("read", err)
	_, death, err := e.records.Dead(t.Context(), "a")
	e.must("read", err)
	e.taken = fleet.TakeOver{Instance: e.ref.Instance, Migration: e.ref.Migration, Attempt: 1, Source: "a", To: "b", Epoch: in.Epoch, Record: record, Death: death}
	e.looks(e.waitsFor("the conductor is silent, and may"))
	e.silence = time.Nanosecond
	e.crash()
	e.looks(func() bool { return len(e.b.tracker.List()) == 0 })
	e.same("after it was given up", before)
	e.wantKind("the conductor's late word", e.takeOver(), fault.Forbidden)
	if got, _, err := e.records.Instance(t.Context(), e.ref.Instance); err != nil || got.Host != "a" || got.Epoch != 1 {
		t.Errorf("record %+v, %v, want a's with epoch 1", got, err)
	}
}

func TestEvacuation_AloneItWaitsForRecordsThatDoNotAnswer(t *testing.T) {
	e := newEvacuation(t, driver.Running)
	e.all(e.prepared())
	e.must("take over", e.takeOver())
	e.store.SetDown(true)
	e.silence = time.Nanosecond
	e.crash()
	e.looks(e.waitsFor("the fleet's records do not answer"))
	if w := e.b.Waiting(); len(w) != 1 || !w[0].InDoubt {
		t.Errorf("it waits for %+v, want in doubt", w)
	}
	e.store.SetDown(false)
	e.looks(func() bool { d, err := e.b.fake.Domain(t.Context(), e.ref.Instance); return err == nil && d.Active() })
	e.all(e.finished())
	e.lives(driver.Running)
}

func TestEvacuation_AnOperatorMayGiveItUp(t *testing.T) {
	e := newEvacuation(t, driver.Running)
	e.all(e.prepared())
	say := func(where string) error {
		_, err := e.b.SettleArrival(t.Context(), e.ref.Migration, migration.Settlement{GuestIsAt: where, Why: "its conductor is gone", By: "test"})
		return err
	}
	e.wantKind("that it is here, which the records do not say", say("b"), fault.Forbidden)
	e.wantKind("that it is on a third host", say("c"), fault.Forbidden)
	e.must("that it stays lost", say("a"))
	e.must("again", say("a"))
	given := newEvacuation(t, driver.Running)
	given.all(given.prepared())
	given.must("take over", given.takeOver())
	_, err := given.b.SettleArrival(t.Context(), given.ref.Migration, migration.Settlement{GuestIsAt: "a", Why: "he is wrong", By: "test"})
	given.wantKind("that it stays lost, which the records do not say", err, fault.Forbidden)
	if diff := cmp.Diff([]string{"given_here"}, codes(err)); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
	if left := e.b.tracker.List(); len(left) > 0 {
		t.Errorf("claims left: %+v", left)
	}
	e.wantKind("the conductor's late word", func() error { _, err := operation.PrepEvacuation.Ask(t.Context(), e.b, e.ref, e.request); return err }(), fault.Forbidden)
}

// The place of a disk that was made is taken when the guest has come: it is here all the same.
func TestEvacuation_ATakenPlaceKeepsItOff(t *testing.T) {
	e := newEvacuation(t, driver.Running)
	e.all(e.prepared())
	e.world.Host("b").Put(rootFile, "raw", 1, "somebody's")
	e.all(e.finished()[:2])
	f, err := operation.FinishEvacuation.Ask(t.Context(), e.b, e.ref)
	e.must("finish", err)
	if f.Started || !strings.Contains(f.NotStarted, "disk vda") || !strings.Contains(f.NotStarted, "occupied") {
		t.Errorf("finished: %+v, want the disk and why", f)
	}
	e.state("b", e.ref.Instance, driver.ShutOff)
	if data, _, _ := e.world.Host("b").Data(rootFile); data != "somebody's" {
		t.Errorf("the file that was there has %q", data)
	}
}

// Several at once wait for each other where they belong to a queue.
func TestEvacuation_AQueuedOneWaitsForItsTurn(t *testing.T) {
	e := newEvacuation(t, driver.Running)
	e.b.Close()
	e.b = e.boot("b", func(o *host.Options) { o.Records, o.MaxInbound = e.records, func() int { return 1 } })
	claim := func(instance string, queued bool) error {
		g, ref := e.request.Guest, refFor(instance, 1)
		g.UUID, ref.Migration = instance, instance
		_, err := operation.Claim.Ask(t.Context(), e.b, ref, migration.ClaimRequest{Guest: g, Lease: time.Minute, Kind: migration.TypeEvacuation, Queued: queued, Context: migration.Context{
			Source: "a", Destination: "b", Conductor: "c", OldResources: g.Resources, NewResources: g.Resources, OldFlavor: g.Flavor, NewFlavor: g.Flavor,
		}})
		return err
	}
	e.must("the first", claim("44444444-4444-4444-8444-444444444444", true))
	err := claim("55555555-5555-4555-8555-555555555555", true)
	e.wantKind("the second", err, fault.Busy)
	if diff := cmp.Diff([]string{migration.CodeInboundLimit}, codes(err)); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
	e.must("one by itself", claim("66666666-6666-4666-8666-666666666666", false))
}

// The firmware's variables are the guest's own file, or none at all.
func TestEvacuation_FirmwareVariablesOfAnotherAreInTheWay(t *testing.T) {
	const path = "/nvram/vm.fd"
	e := newEvacuation(t, driver.Running)
	g := &e.request.Guest
	g.Definition = strings.Replace(g.Definition, "<os>", "<os><loader readonly='yes' type='pflash'>"+baseImage+"</loader><nvram template='"+baseImage+"'>"+path+"</nvram>", 1)
	_, err := e.check()
	e.must("where there is none", err)
	files := e.world.Host("b")
	files.Put(path, "raw", 1, "whose?")
	_, err = e.check()
	if diff := cmp.Diff([]string{"firmware_variables_exist"}, codes(err)); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
	g.Variables, err = files.Identity(path)
	e.must("identify", err)
	_, err = e.check()
	e.must("where it is the very file", err)
}

// libvirt makes no block device: the firmware's variables are on the very device, or nothing is evacuated.
func TestEvacuation_FirmwareVariablesOnADevice(t *testing.T) {
	const path = "/nvram/device"
	e := newEvacuation(t, driver.Running)
	g := &e.request.Guest
	g.Definition = strings.Replace(g.Definition, "<os>", "<os><loader readonly='yes' type='pflash'>"+baseImage+"</loader><nvram type='block'><source dev='"+path+"'/></nvram>", 1)
	refused := func(when string) {
		_, err := e.check()
		if diff := cmp.Diff([]string{"firmware_variables_block"}, codes(err)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	refused("where there is none")
	files := e.world.Host("b")
	files.Put(path, "raw", 1, "whose?")
	refused("where it is another")
	var err error
	g.Variables, err = files.Identity(path)
	e.must("identify", err)
	_, err = e.check()
	e.must("where it is the very device", err)
}

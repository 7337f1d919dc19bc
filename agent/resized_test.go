package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/agent/host"
	"berth/agent/host/external"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/migration"
	"berth/migration/operation"
	"berth/migration/options"
	"berth/topology"
)

// asked asks one host for a move that pulls the plug, and waits until it rests or is over.
func (p *pair) asked(at string, r api.Migrate) migration.Migration {
	p.Helper()
	if r.MigrationType != migration.TypeLiveMigration {
		r.ShutdownTimeout = new(time.Duration)
	}
	m, err := p.clients[at].Migrate(p.Context(), r)
	p.must(err)
	return p.rested(m)
}

// rested waits until a move waits for its confirmation or is over.
func (p *pair) rested(m migration.Migration) migration.Migration {
	p.Helper()
	p.until("the move rests", func() bool {
		var err error
		m, err = p.clients[m.SourceCompute].Migration(p.Context(), m.UUID)
		p.must(err)
		return m.Done() || m.Status == migration.StatusFinished
	})
	return m
}

// as gives a client by which one host asks another.
func (p *pair) as(name, of string) *api.Client {
	p.Helper()
	c := p.options[name].Config
	id, err := pki.Load(pki.Paths{CA: c.PKI.CA, Cert: c.PKI.Cert, Key: c.PKI.Key}, time.Now())
	p.must(err)
	client, err := api.NewClient(api.ClientOptions{Address: c.Peers[of], Name: of, Identity: id, As: name})
	p.must(err)
	p.Cleanup(client.Close)
	return client
}

// seen is where a guest stands, as one host shows it: by itself and in its list.
func (p *pair) seen(at, name string) (status string, resize *host.ResizeView) {
	p.Helper()
	one, err := p.clients[at].Instance(p.Context(), name)
	if errors.Is(err, fault.NotFound) {
		return "", nil
	}
	p.must(err)
	list, err := p.clients[at].Instances(p.Context())
	p.must(err)
	for _, i := range list.Instances {
		if i.UUID == one.UUID && (i.Status != one.Status || !cmp.Equal(i.Resize, one.Resize)) {
			p.Errorf("%s lists %s as %s %+v, and shows it as %s %+v", at, name, i.Status, i.Resize, one.Status, one.Resize)
		}
	}
	return one.Status, one.Resize
}

var larger = topology.Flavor{Name: "larger", VCPUs: 2, MemoryMB: 256, DiskGB: 1}

func TestResize_ToAnotherHostIsSeenAndEndedFromBoth(t *testing.T) {
	t.Parallel()
	p := newPair(t, time.Hour)
	for _, name := range []string{"kept", "back"} {
		uuid := p.guest("host-a", name)
		day := 24 * time.Hour
		// Asked of the host that has not the guest.
		m := p.asked("host-b", api.Migrate{Instance: name, Destination: "host-b", MigrationType: migration.TypeResize, Flavor: &larger, ConfirmWindow: &day})
		if m.Status != migration.StatusFinished || m.SourceCompute != "host-a" || m.DestCompute != "host-b" || m.NewFlavor != "larger" || m.OldFlavor != "small" {
			t.Fatalf("%s: %+v, error %v", name, m, m.Error)
		}
		next := []string{"berth resize confirm " + name, "berth resize revert " + name}
		status, got := p.seen("host-a", name)
		want := &host.ResizeView{Migration: m.UUID, MigrationType: migration.TypeResize, Source: "host-a", Destination: "host-b", Half: host.HalfKept, OldFlavor: "small", ConfirmsAt: m.ConfirmBy, Next: next}
		if diff := cmp.Diff(want, got); status != "VERIFY_RESIZE" || diff != "" || m.ConfirmBy.IsZero() {
			t.Errorf("%s at its source: %s (-want +got):\n%s", name, status, diff)
		}
		status, got = p.seen("host-b", name)
		want = &host.ResizeView{Migration: m.UUID, Source: "host-a", Destination: "host-b", Half: host.HalfGuest, OldFlavor: "small", Next: next}
		if diff := cmp.Diff(want, got); status != "VERIFY_RESIZE" || diff != "" {
			t.Errorf("%s at its destination: %s (-want +got):\n%s", name, status, diff)
		}
		for _, at := range []string{"host-a", "host-b"} {
			if got, err := p.clients[at].Migration(t.Context(), m.UUID); err != nil || got.UUID != m.UUID || got.Status != migration.StatusFinished {
				t.Errorf("%s asked for the move: %+v, %v", at, got, err)
			}
			if _, err := p.clients[at].Migrate(t.Context(), api.Migrate{Instance: uuid, Destination: "host-a"}); err == nil || !strings.Contains(advice(err), "berth resize confirm") {
				t.Errorf("%s asked for another move: %v (%s), want what to type", at, err, advice(err))
			}
		}
		enough := errors.New("enough")
		err := p.clients["host-b"].WatchMigration(t.Context(), m.UUID, time.Second, func(w migration.Migration) error {
			if w.UUID != m.UUID || w.Status != migration.StatusFinished {
				t.Errorf("watched through its destination: %+v", w)
			}
			return enough
		})
		if !errors.Is(err, enough) {
			t.Errorf("watched through its destination: %v", err)
		}
	}

	// Host-a is asked to have host-b confirm it, which passes that on to host-a.
	m, err := p.clients["host-a"].Via("host-b").ConfirmMigration(t.Context(), "kept")
	p.must(err)
	if m = p.rested(m); m.Status != migration.StatusConfirmed {
		t.Errorf("confirmed: %s, %v", m.Status, m.Error)
	}
	if status, resize := p.seen("host-b", "kept"); status != "ACTIVE" || resize != nil {
		t.Errorf("confirmed, at its destination: %s %+v", status, resize)
	}
	if status, _ := p.seen("host-a", "kept"); status != "" {
		t.Errorf("confirmed, at its source: %s", status)
	}
	// Nothing of the move is left there, and a verb whose answer was lost is still its
	// conductor's to ask.
	source := p.as("host-a", "host-b")
	if err := operation.ConfirmDestination.Ask(t.Context(), source, migration.Ref{Migration: m.UUID, Instance: m.InstanceUUID, Attempt: m.Moved, Step: migration.StepConfirmDestination}); err != nil {
		t.Errorf("the destination asked again to confirm: %v", err)
	}
	// The answer to a word that was lost is the same.
	if again, err := p.clients["host-a"].ConfirmMigration(t.Context(), m.UUID); err != nil || again.Status != migration.StatusConfirmed {
		t.Errorf("confirmed again: %+v, %v", again.Status, err)
	}

	m, err = p.clients["host-b"].RevertMigration(t.Context(), "back")
	p.must(err)
	if m = p.rested(m); m.Status != migration.StatusReverted {
		t.Errorf("reverted: %s, %v", m.Status, m.Error)
	}
	if status, resize := p.seen("host-a", "back"); status != "ACTIVE" || resize != nil {
		t.Errorf("reverted, at its source: %s %+v", status, resize)
	}
	if status, _ := p.seen("host-b", "back"); status != "" {
		t.Errorf("reverted, at its destination: %s", status)
	}
	back := migration.Ref{Migration: m.UUID, Instance: m.InstanceUUID, Attempt: m.Attempt, Step: migration.StepCleanUpReverted}
	if err := operation.CleanUpReverted.Ask(t.Context(), source, back); err != nil {
		t.Errorf("the destination asked again to clean up: %v", err)
	}
	back.Migration, back.Step = "99999999-9999-4999-8999-999999999999", migration.StepPowerOff
	if _, err := operation.PowerOff.Ask(t.Context(), p.as("host-b", "host-a"), back, migration.PowerOffRequest{Kind: migration.TypeMigration}); !errors.Is(err, fault.Forbidden) {
		t.Errorf("a guest powered off by a migration that was made up: %v", err)
	}
	if _, err := p.clients["host-b"].RevertMigration(t.Context(), "back"); !errors.Is(err, fault.NotFound) {
		t.Errorf("a guest on no move: %v, want %v", err, fault.NotFound)
	}
}

// advice is what the reasons of an error say is to be done.
func advice(err error) string {
	var out []string
	for _, r := range fault.ReasonsOf(err) {
		out = append(out, r.Change)
	}
	return strings.Join(out, "; ")
}

func TestResize_InPlaceIsFoundByItsGuestsNameFromAnotherHost(t *testing.T) {
	t.Parallel()
	p := newPair(t, time.Hour)
	p.guest("host-a", "web")
	m := p.asked("host-a", api.Migrate{Instance: "web", Destination: "host-a", MigrationType: migration.TypeResize, Flavor: &larger})
	if m.Status != migration.StatusFinished || !m.InPlace {
		t.Fatalf("%+v, error %v", m, m.Error)
	}
	status, resize := p.seen("host-a", "web")
	if status != "VERIFY_RESIZE" || resize == nil || resize.Half != host.HalfBoth || !resize.ConfirmsAt.IsZero() {
		t.Errorf("%s %+v", status, resize)
	}
	m, err := p.clients["host-b"].ConfirmMigration(t.Context(), "web")
	p.must(err)
	if m = p.rested(m); m.Status != migration.StatusConfirmed || m.SourceCompute != "host-a" {
		t.Errorf("confirmed: %s, %v", m.Status, m.Error)
	}
	if status, resize := p.seen("host-a", "web"); status != "ACTIVE" || resize != nil {
		t.Errorf("confirmed: %s %+v", status, resize)
	}
}

func TestMigrate_TakesTheTypeThatTheGuestAllows(t *testing.T) {
	t.Parallel()
	p := newPair(t, time.Hour)
	p.guest("host-a", "web")
	refused := func(r api.Migrate, kind fault.Kind) {
		t.Helper()
		r.Instance, r.Destination = "web", "host-b"
		if m, err := p.clients["host-a"].Migrate(t.Context(), r); !errors.Is(err, kind) {
			t.Errorf("%+v: %+v, %v, want %v", r, m, err, kind)
		}
	}
	minute := time.Minute
	refused(api.Migrate{MigrationType: migration.TypeMigration, Offline: true}, fault.Forbidden)
	refused(api.Migrate{MigrationType: migration.TypeLiveMigration, ConfirmWindow: &minute}, fault.Invalid)
	refused(api.Migrate{MigrationType: migration.TypeRebuild, Offline: true}, fault.Invalid)
	live := migration.Options{AutoConverge: options.On}
	refused(api.Migrate{MigrationType: migration.TypeMigration, Options: live}, fault.Invalid)
	refused(api.Migrate{Offline: true, Options: live}, fault.Invalid)
	refused(api.Migrate{ShareNothing: true, Options: live}, fault.Invalid)
	refused(api.Migrate{MigrationType: migration.TypeMigration, Priority: 100}, fault.Invalid)
	refused(api.Migrate{MigrationType: migration.TypeResize, FlavorName: "nothing"}, fault.Invalid)
	refused(api.Migrate{MigrationType: migration.TypeResize, FlavorName: "x", Flavor: &larger}, fault.Invalid)
	refused(api.Migrate{MigrationType: migration.TypeResize}, fault.Invalid)
	refused(api.Migrate{MigrationType: "teleportation"}, fault.Invalid)
	refused(api.Migrate{MigrationType: migration.TypeEvacuation}, fault.Forbidden) // no records are kept here

	_, err := p.clients["host-a"].StopInstance(t.Context(), "web", api.StopInstance{Force: true})
	p.must(err)
	refused(api.Migrate{MigrationType: migration.TypeLiveMigration}, fault.Forbidden)
	refused(api.Migrate{Options: live}, fault.Forbidden)
	m := p.asked("host-a", api.Migrate{Instance: "web", Destination: "host-b", Offline: true})
	if m.MigrationType != migration.TypeMigration || m.Status != migration.StatusFinished {
		t.Fatalf("of a guest that is shut off: %+v, error %v", m, m.Error)
	}
	if status, resize := p.seen("host-b", "web"); status != "VERIFY_RESIZE" || resize == nil {
		t.Errorf("%s %+v", status, resize)
	}
}

func TestRebuild_GivesANewDiskAndGoesThroughNovasWords(t *testing.T) {
	t.Parallel()
	p := newPair(t, time.Hour)
	folder := p.options["host-a"].Config.Host.DiskPath
	image, disk := filepath.Join(folder, "new.raw"), filepath.Join(folder, "web.raw")
	p.must(os.WriteFile(image, []byte(strings.Repeat("new", 1<<10)), 0o644))
	r := api.CreateInstance{}
	r.Name, r.Kernel, r.Start = "web", p.kernel, true
	r.Flavor = topology.Flavor{Name: "small", VCPUs: 1, MemoryMB: 128, DiskGB: 1}
	r.Disks = []host.CreateDisk{{Path: disk, Format: "raw", SizeGB: 1}}
	_, err := p.clients["host-a"].CreateInstance(t.Context(), r)
	p.must(err)

	m := p.asked("host-b", api.Migrate{Instance: "web", MigrationType: migration.TypeRebuild, Image: &migration.Image{Path: image}})
	if m.Status != migration.StatusDone || m.NewImage != image || m.SourceCompute != "host-a" {
		t.Fatalf("%+v, error %v", m, m.Error)
	}
	got := make([]byte, 6)
	f, err := os.Open(disk)
	p.must(err)
	defer f.Close()
	if _, err := io.ReadFull(f, got); err != nil || string(got) != "newnew" {
		t.Errorf("the disk begins with %q, %v", got, err)
	}
	if status, resize := p.seen("host-a", "web"); status != "ACTIVE" || resize != nil {
		t.Errorf("rebuilt: %s %+v", status, resize)
	}
}

func TestMigrate_TheSameUUIDAgainIsTheSameMoveWhereverTheGuestIs(t *testing.T) {
	p := newPair(t, time.Hour)
	id := p.guest("host-a", "web")
	r := api.Migrate{Instance: "web", Migration: "11111111-1111-4111-8111-111111111111", MigrationType: migration.TypeLiveMigration}
	m := p.asked("host-a", r)
	if m.Status != migration.StatusCompleted || m.DestCompute != "host-b" {
		t.Fatalf("%+v, error %v", m, m.Error)
	}
	for _, at := range []string{"host-a", "host-b"} {
		for _, name := range []string{"web", id} {
			r.Instance = name
			again, err := p.clients[at].Migrate(t.Context(), r)
			if err != nil || again.SourceCompute != "host-a" || !again.CreatedAt.Equal(m.CreatedAt) {
				t.Errorf("asked of %s again for %s: a move from %q, %s, %v", at, name, again.SourceCompute, again.Status, err)
			}
		}
	}
	for what, change := range map[string]func(*api.Migrate){
		"destination": func(r *api.Migrate) { r.Destination = "host-b" },
		"type":        func(r *api.Migrate) { r.MigrationType = migration.TypeMigration },
		"flavor":      func(r *api.Migrate) { r.FlavorName = "large" },
	} {
		for _, at := range []string{"host-a", "host-b"} {
			other := r
			change(&other)
			_, err := p.clients[at].Migrate(t.Context(), other)
			if !errors.Is(err, fault.Exists) || !strings.Contains(err.Error(), "begun with "+what) {
				t.Errorf("another %s by the same uuid, asked of %s: %v", what, at, err)
			}
		}
	}
	if status, _ := p.seen("host-b", "web"); status != "ACTIVE" {
		t.Errorf("the guest is %q on host-b", status)
	}
}

func TestResize_ASilentSourceIsNamedByTheDestination(t *testing.T) {
	p := newPair(t, time.Hour)
	p.guest("host-a", "web")
	m := p.asked("host-a", api.Migrate{Instance: "web", Destination: "host-b", MigrationType: migration.TypeResize, Flavor: &larger})
	p.must(p.stop["host-a"]())
	c := p.clients["host-b"]
	var asked sync.WaitGroup
	for what, ask := range map[string]func() error{
		"confirm": func() error { _, err := c.ConfirmMigration(t.Context(), "web"); return err },
		"show":    func() error { _, err := c.Migration(t.Context(), m.UUID); return err },
		"watch": func() error {
			return c.WatchMigration(t.Context(), "web", time.Second, func(migration.Migration) error { return nil })
		},
	} {
		// At the same time: each tries again for a while.
		asked.Go(func() {
			err := ask()
			if !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "host-a conducts migration "+m.UUID) {
				t.Errorf("%s while the source is away: %v", what, err)
			}
		})
	}
	asked.Wait()
	if status, resize := p.seen("host-b", "web"); status != "VERIFY_RESIZE" || resize == nil {
		t.Errorf("meanwhile: %s %+v", status, resize)
	}
}

func TestResize_AToolsOwnIsEndedByItsHooks(t *testing.T) {
	p := newPair(t, time.Hour)
	id := p.guest("host-a", "web")
	const tools = "66666666-6666-4666-8666-666666666601"
	text, err := p.fleet.Host("host-a").XML(t.Context(), id, driver.Persistent)
	p.must(err)
	hook := func(at, phase string, r external.HookRequest) external.HookAnswer {
		t.Helper()
		a, err := p.clients[at].MigrationHook(t.Context(), tools, phase, r)
		p.must(err)
		return a
	}
	a := hook("host-b", external.PhasePrepResize, external.HookRequest{Instance: id, Source: "host-a", DomainXML: text, Flavor: &larger})
	refused := func(what string, err error, advice ...string) {
		t.Helper()
		got := fmt.Sprint(err)
		for _, r := range fault.ReasonsOf(err) {
			got += " TO DO " + r.Change
		}
		for _, want := range advice {
			if err == nil || !strings.Contains(got, want) {
				t.Errorf("%s: %s, want %q in it", what, got, want)
			}
		}
		if strings.Contains(got, "berth resize confirm") {
			t.Errorf("%s: %s, which does nothing for a tool's migration", what, got)
		}
	}
	hook("host-a", external.PhaseResizeInstance, external.HookRequest{Instance: id, Destination: "host-b"})
	_, err = p.clients["host-b"].AbortMigration(t.Context(), tools)
	refused("abort on its way", err, "berth external --help")
	p.must(p.fleet.Host("host-a").Destroy(t.Context(), id))
	p.must(p.fleet.Host("host-b").Define(t.Context(), a.DestinationXML))
	hook("host-b", external.PhaseFinishResize, external.HookRequest{})

	next := []string{"berth external confirm-resize --migration " + tools + " on host-a and on host-b", "berth external revert-resize on host-b", "finish-revert-resize on host-a"}
	status, resize := p.seen("host-b", "web")
	if status != "VERIFY_RESIZE" || resize == nil {
		t.Fatalf("%s %+v", status, resize)
	}
	refused("shown", errors.New(strings.Join(resize.Next, ", or ")), next...)
	for _, at := range []string{"host-a", "host-b"} {
		for _, ref := range []string{"web", tools} {
			_, err = p.clients[at].ConfirmMigration(t.Context(), ref)
			refused("confirm "+ref+" at "+at, err, next...)
			_, err = p.clients[at].RevertMigration(t.Context(), ref)
			refused("revert "+ref+" at "+at, err, next...)
		}
		_, err = p.clients[at].Migrate(t.Context(), api.Migrate{Instance: "web"})
		refused("migrate at "+at, err, next...)
		_, err = p.clients[at].DeleteInstance(t.Context(), "web", api.DeleteInstance{})
		refused("delete at "+at, err, next...)
	}
	hook("host-a", external.PhaseConfirmResize, external.HookRequest{})
	hook("host-b", external.PhaseConfirmResize, external.HookRequest{})
	if status, resize := p.seen("host-b", "web"); status != "SHUTOFF" || resize != nil {
		t.Errorf("confirmed: %s %+v", status, resize)
	}
}

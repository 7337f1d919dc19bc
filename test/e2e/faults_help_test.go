package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/agent/api"
	"berth/migration"
	"berth/test/guest"
	"berth/test/lab"
)

// A breakage is something that goes wrong during one move of one guest, and
// what may come of the move once everything is up again. A move of it begins
// where the guest is, so that one guest serves many.
type breakage struct {
	what string
	// step is the step of the move at whose beginning it goes wrong, read in the
	// source agent's log; after is a further pause, and bytes waits for the
	// stream to flow instead.
	step  string
	after time.Duration
	bytes bool
	// broken does it, and healed puts it right; healed may be nil.
	broken func(r *round)
	healed func(r *round)
	// down is how long it stays broken.
	down time.Duration
	// bandwidth of the stream; empty for as fast as it goes.
	bandwidth string
	// want are the outcomes that are honest; empty for completed or undone.
	want []migration.Outcome
	// off is the state of a guest that the breakage ends, in virsh's words; empty
	// for one that runs on.
	off string
	// rare ones run only with BERTH_FAULTS=all: they take long, or their like runs
	// anyway.
	rare bool
}

// round is one move with its breakage.
type round struct {
	*world
	guest    string
	from, to *lab.Host
	uuid     string
}

// faults brings up a fleet of its own with one guest that loads it little.
func faults(t *testing.T, name string, config map[string]string) *world {
	w := own(t, config)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	t.Cleanup(cancel)
	w.ctx = ctx
	w.boot(w.a, guest.Options{Name: name, Dirty: 4, Rate: 16})
	return w
}

// agentLog is what a host's agent has logged so far.
func (w *world) agentLog(h *lab.Host) string {
	text, err := os.ReadFile(filepath.Join(w.Dir, h.Name+"-agent.log"))
	if err != nil {
		w.Fatal(err)
	}
	return string(text)
}

// logged waits until a host's agent logs a line that has all words, after what
// it had logged at from.
func (w *world) logged(h *lab.Host, from int, words ...string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	for {
		for line := range strings.Lines(w.agentLog(h)[from:]) {
			has := strings.HasSuffix(line, "\n")
			for _, word := range words {
				has = has && strings.Contains(line, word)
			}
			if has {
				return
			}
		}
		select {
		case <-ctx.Done():
			w.Fatalf("the agent of %s did not log %q", h.Name, words)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// where finds the host that a guest runs on.
func (w *world) where(name string) (here, there *lab.Host) {
	w.Helper()
	if strings.HasPrefix(w.domain(w.a, name), "running") {
		return w.a, w.b
	}
	return w.b, w.a
}

// all says whether the rare breakages are wanted too; they take a quarter of an
// hour.
func all() bool { return os.Getenv("BERTH_FAULTS") == "all" }

// sufferAll is suffer for each, but for the rare ones where they are not wanted.
func (w *world) sufferAll(name string, list []breakage) {
	w.Helper()
	for _, b := range list {
		if !b.rare || all() {
			w.suffer(name, b)
		}
	}
}

// suffer moves a guest, breaks something meanwhile, heals it, and requires the
// truth of everything afterwards. It gives the migration's last word.
func (w *world) suffer(name string, b breakage) migration.Migration {
	w.Helper()
	here, there := w.where(name)
	r := &round{world: w, guest: name, from: here, to: there}
	// The destination's console begins anew: one beat on it is a copy that ran.
	if err := os.Remove(there.Console(name)); err != nil && !os.IsNotExist(err) {
		w.Fatal(err)
	}
	before := len(w.agentLog(here))
	begun := time.Now()
	bandwidth := b.bandwidth
	if bandwidth == "" {
		bandwidth = "500MiB/s"
	}
	var m migration.Migration
	if err := unmarshalLast(w.berth(here, "migrate", name, there.Name, "--detach", "--bandwidth", bandwidth, "--json"), &m); err != nil {
		w.Fatal(err)
	}
	r.uuid = m.UUID
	if b.bytes {
		w.migration(here, name, "sends memory", func(m migration.Migration) bool { return m.UUID == r.uuid && m.Progress.MemoryProcessed > 4<<20 })
	} else if b.step != "" {
		w.logged(here, before, "step begins", "step="+b.step, r.uuid)
	}
	pause(w, b.after)
	b.broken(r)
	broke := time.Now()
	pause(w, b.down)
	if b.healed != nil {
		b.healed(r)
	}
	healed := time.Now()
	m = r.over(slices.Contains(b.want, migration.OutcomeInDoubt))
	w.Logf("%-60s → %s %s, %.1f s after the move began, %.1f s after it was broken, %.1f s after it was healed; %v", b.what, m.Status, m.Outcome,
		time.Since(begun).Seconds(), time.Since(broke).Seconds(), time.Since(healed).Seconds(), m.Error.Err())
	want := b.want
	if len(want) == 0 {
		want = []migration.Outcome{migration.OutcomeCompleted, migration.OutcomeUndone}
	}
	if !slices.Contains(want, m.Outcome) {
		w.Errorf("%s: the move is %s %q (%v), want one of %v", b.what, m.Status, m.Outcome, m.Error.Err(), want)
	}
	if m.Done() {
		r.truth(m, b.off)
	}
	if w.Failed() {
		w.Fatalf("%s: stopped here", b.what)
	}
	return m
}

func pause(w *world, d time.Duration) {
	w.Helper()
	select {
	case <-time.After(d):
	case <-w.ctx.Done():
		w.Fatal(w.ctx.Err())
	}
}

// over waits for the end of the move, or until it is in doubt where that is
// awaited. Everything is up by now.
func (r *round) over(doubt bool) migration.Migration {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	for {
		var m migration.Migration
		if err := r.JSON(ctx, r.from.Name, &m, "migration", "show", r.uuid); err == nil && (m.Done() || doubt && m.Outcome == migration.OutcomeInDoubt && r.nobodyKnows()) {
			return m
		}
		select {
		case <-ctx.Done():
			r.Fatalf("the move does not end: %s %s, step %s %s: %v\n%+v\non %s: %q, on %s: %q", m.Status, m.Outcome, m.Step, m.Phase, m.Error.Err(), m.Steps,
				r.from.Name, r.domain(r.from, r.guest), r.to.Name, r.domain(r.to, r.guest))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// nobodyKnows is the one doubt that no later look ends: the source's domain has
// forgotten why it is off, and a whole copy waits at the destination.
func (r *round) nobodyKnows() bool {
	return r.domain(r.from, r.guest) == "shut off (unknown)" && r.domain(r.to, r.guest) == "paused (user)"
}

// truth requires that the guest is where the move says and nowhere else, that it
// never ran twice, and that hosts and Placement hold exactly that.
func (r *round) truth(m migration.Migration, off string) {
	r.Helper()
	here, there := r.from, r.to
	if m.Outcome == migration.OutcomeCompleted {
		here, there = r.to, r.from
	}
	r.livesAs(off, r.guest, here, there)
	r.noStream()
	if off == "" {
		r.ranOnce(m, here)
	}
	for _, h := range r.Hosts {
		if in := r.run(h, "instance", "show", r.guest, "--json"); in.Code == 0 {
			var d api.InstanceDetail
			if err := unmarshalLast(in.Stdout, &d); err != nil || d.Migration != "" {
				r.Errorf("%s still believes %s to be in migration %q: %v", h.Name, r.guest, d.Migration, err)
			}
		}
		r.healthy(h)
		files, _ := filepath.Glob(h.Path(images) + "/.*") // made and not yet published
		if len(files) > 0 {
			r.Errorf("left on %s: %v", h.Name, files)
		}
	}
}

// livesAs is livesOn for a guest that has ended in a certain state.
func (w *world) livesAs(state, name string, here, there *lab.Host) {
	w.Helper()
	if state == "" {
		w.livesOn(name, here, there)
		return
	}
	w.require("domain on "+here.Name, w.domain(here, name), state)
	w.require("domain on "+there.Name, w.domain(there, name), "")
	var claims []string
	for _, h := range w.Hosts {
		for _, c := range ask[api.ClaimList](w, h, "claim", "list").Claims {
			claims = append(claims, h.Name+" "+c.Kind+" "+c.State)
		}
		_, err := os.Stat(h.Path(images + "/" + name + ".qcow2"))
		w.require("disk on "+h.Name, err == nil, h == here)
	}
	w.require("claims", claims, []string{here.Name + " instance bound"})
	w.require("allocations", w.holds(here, name), []string{"INSTANCE on " + here.Name})
}

// again starts a guest that a breakage has ended.
func (w *world) again(h *lab.Host, name string) {
	w.Helper()
	// What the console had is another boot's.
	if err := os.Remove(h.Console(name)); err != nil {
		w.Fatal(err)
	}
	w.berth(h, "instance", "start", name)
	w.beats(h, name, 1)
}

// ranOnce reads from the guest's own words that no second copy of it ran.
func (r *round) ranOnce(m migration.Migration, here *lab.Host) {
	r.Helper()
	if here == r.to {
		r.alive(r.guest, r.from, r.to)
		return
	}
	r.alive(r.guest, here, here)
	if beats, err := guest.ReadConsole(r.to.Console(r.guest)); err == nil && len(beats) > 0 {
		r.Errorf("migration %s is %s, and yet a copy ran on %s: %d beats", m.UUID, m.Outcome, r.to.Name, len(beats))
	}
}

// healthy waits until a host's status is without complaint.
func (w *world) healthy(h *lab.Host) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	for {
		r, err := w.Berth(ctx, h.Name, "status")
		if err == nil && r.Code == 0 {
			return
		}
		select {
		case <-ctx.Done():
			w.Errorf("status of %s: %v, exit code %d\n%s%s", h.Name, err, r.Code, r.Stdout, r.Stderr)
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// What can break, and how it is put right.

func (r *round) must(doing string, err error) {
	r.Helper()
	if err != nil {
		r.Fatalf("%s: %v", doing, err)
	}
}

func killAgent(of func(*round) *lab.Host) func(*round) {
	return func(r *round) { r.Agent(of(r).Name).Kill() }
}

func startAgent(of func(*round) *lab.Host) func(*round) {
	return func(r *round) {
		r.must("start the agent", r.StartAgent(r.ctx, of(r).Name))
		r.must("start the agent", r.WaitReady(r.ctx, of(r).Name))
	}
}

func source(r *round) *lab.Host      { return r.from }
func destination(r *round) *lab.Host { return r.to }

func killLibvirtd(of func(*round) *lab.Host) func(*round) {
	return func(r *round) { r.must("kill libvirtd", of(r).KillLibvirtd(r.ctx)) }
}

func startLibvirtd(of func(*round) *lab.Host) func(*round) {
	return func(r *round) { r.must("start libvirtd", of(r).StartLibvirtd(r.ctx)) }
}

func stopLibvirtd(of func(*round) *lab.Host) func(*round) {
	return func(r *round) { r.must("stop libvirtd", of(r).PauseLibvirtd()) }
}

func continueLibvirtd(of func(*round) *lab.Host) func(*round) {
	return func(r *round) {
		r.must("continue libvirtd", of(r).ResumeLibvirtd())
		// libvirtd 9.0.0 may die of what its clients did meanwhile; a host's systemd starts it anew.
		for range 10 {
			if _, err := of(r).Virsh(r.ctx, "uri"); err != nil {
				r.Logf("libvirtd has died when it went on, and is started again: %v", err)
				startLibvirtd(of)(r)
				return
			}
			pause(r.world, 50*time.Millisecond)
		}
	}
}

func killQEMU(of func(*round) *lab.Host) func(*round) {
	return func(r *round) {
		pid, err := of(r).QEMUPID(r.guest)
		r.must("find QEMU", err)
		r.must("kill QEMU", syscall.Kill(pid, syscall.SIGKILL))
	}
}

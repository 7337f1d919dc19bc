package host_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"berth/agent/host"
	"berth/agent/host/external"
	"berth/agent/host/hooks"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

const toolsColdMove = "66666666-6666-4666-8666-666666666601"

// toolsMove is a tool that moves a guest while it is off, from a to b.
type toolsMove struct {
	*foreignLab
	uuid     string
	document string // the guest's definition at its source
}

func newToolsMove(t *testing.T) *toolsMove {
	l := newForeignLab(t)
	m := &toolsMove{foreignLab: l, uuid: l.guest("a", "web").UUID}
	var err error
	m.document, err = l.hosts["a"].fake.XML(t.Context(), m.uuid, driver.Persistent)
	l.must("read the definition", err)
	return m
}

func (m *toolsMove) hook(on, phase string, r external.HookRequest) (external.HookAnswer, error) {
	return m.hosts[on].External().Hook(m.t.Context(), toolsColdMove, phase, r)
}

// twice asks for a phase, each time of an agent that was restarted.
func (m *toolsMove) twice(on, phase string, r external.HookRequest) (a external.HookAnswer) {
	m.t.Helper()
	for range 2 {
		var err error
		a, err = m.hook(on, phase, r)
		m.must(phase+" on "+on, err)
		m.again(on)
	}
	return a
}

// again restarts an agent.
func (m *toolsMove) again(name string) {
	n := m.hosts[name]
	n.Close()
	n.store = n.store.Crash()
	m.boot(name, func(o *host.Options) {
		o.Fleet, o.Owners, o.Runtime = fellows{m.lab, name, m.silent}, m.owners[name], later{m.rt, &m.clock}
	})
}

func (m *toolsMove) prep(f *topology.Flavor) external.HookAnswer {
	m.t.Helper()
	return m.twice("b", external.PhasePrepResize, external.HookRequest{Instance: m.uuid, Source: "a", DomainXML: m.document, Flavor: f})
}

// give tells the source that the guest may go to b.
func (m *toolsMove) give() {
	m.t.Helper()
	m.twice("a", external.PhaseResizeInstance, external.HookRequest{Instance: m.uuid, Destination: "b"})
}

// off powers the guest off, as the tool does.
func (m *toolsMove) off(on string) {
	m.t.Helper()
	m.must("power off", m.hosts[on].fake.Destroy(m.t.Context(), m.uuid))
}

// held are the claims of the guest on a host, each with kind and state.
func (m *toolsMove) held(on string) string {
	var out []string
	for _, c := range m.hosts[on].tracker.ByInstance(m.uuid) {
		out = append(out, string(c.Owner.Kind)+" "+string(c.State)+" "+c.Resources.String())
	}
	return strings.Join(out, ", ")
}

func (m *toolsMove) owns(on string) bool {
	i, known := m.hosts[on].tracker.Instance(m.uuid)
	return known && i.Token.State == claims.TokenHere
}

var larger = topology.Flavor{Name: "larger", VCPUs: 2, MemoryMB: 256, DiskGB: 1}

func TestForeignCold_AResizeIsConfirmed(t *testing.T) {
	m := newToolsMove(t)
	log := m.hosts["b"].path("/log")
	for name, phases := range map[string][]string{"a": {hooks.ConfirmResize}, "b": {hooks.PrepResize, hooks.FinishResize}} {
		for _, phase := range phases {
			m.hosts[name].put(t, "/hooks/"+phase+"/10-log", "#!/bin/sh\necho "+phase+" >>"+log+"\n", 0o755)
		}
	}
	a := m.prep(&larger)
	if a.Claim == "" || a.ExpiresAt == nil || !strings.Contains(a.DestinationXML, m.uuid) || !strings.Contains(a.DestinationXML, ">2</vcpu>") {
		t.Errorf("prepared: %+v", a)
	}
	_, err := m.hook("b", external.PhaseFinishResize, external.HookRequest{})
	m.wantKind("finish before the guest is defined", err, fault.Busy)
	m.must("define", m.hosts["b"].fake.Define(t.Context(), a.DestinationXML))
	m.give()
	_, err = m.hook("b", external.PhaseFinishResize, external.HookRequest{})
	m.wantKind("finish while the guest runs at its source", err, fault.Busy)
	if !m.owns("a") {
		t.Fatal("the source gave a guest away that runs")
	}
	m.off("a")
	if got := m.twice("b", external.PhaseFinishResize, external.HookRequest{}); got.Claim != a.Claim {
		t.Errorf("claim %s is bound, want %s", got.Claim, a.Claim)
	}
	if !m.owns("b") || m.owns("a") {
		t.Errorf("owners: a %v, b %v", m.owns("a"), m.owns("b"))
	}
	if got, want := m.held("b"), "instance bound "+larger.Resources().String(); got != want {
		t.Errorf("b holds %q, want %q", got, want)
	}
	if got, want := m.held("a"), "resize held "+small.Resources().String(); got != want {
		t.Errorf("a holds %q, want %q", got, want)
	}
	err = m.hosts["a"].Start(t.Context(), m.uuid, false)
	m.wantKind("start at the source", err, fault.Busy)
	err = m.hosts["b"].Start(t.Context(), m.uuid, false)
	m.must("start at the destination", err)

	m.twice("a", external.PhaseConfirmResize, external.HookRequest{})
	m.twice("b", external.PhaseConfirmResize, external.HookRequest{})
	m.twice("b", external.PhaseFinishResize, external.HookRequest{})
	if p := m.picture(); p["a claims"] != nil || p["a domains"] != nil || p["a instances"] != nil || p["a contexts"] != nil ||
		p["a memories"] != nil || p["b contexts"] != nil || p["b memories"] != nil {
		t.Errorf("left behind: %v", p)
	}
	m.state("b", m.uuid, driver.Running)
	held, err := m.placement.Allocations(t.Context(), m.uuid)
	m.must("read the allocation", err)
	if len(held.Allocations) != 1 || held.Allocations["rp-b"] == nil {
		t.Errorf("allocations %+v, want b's alone", held.Allocations)
	}
	text, err := os.ReadFile(log)
	m.must("read what hooks wrote", err)
	if got := string(text); got != "prep_resize\nfinish_resize\nconfirm_resize\n" {
		t.Errorf("hooks ran so: %q", got)
	}
}

func TestForeignCold_AResizeIsReverted(t *testing.T) {
	m := newToolsMove(t)
	before := m.picture()
	a := m.prep(&larger)
	m.give()
	m.off("a")
	m.must("define", m.hosts["b"].fake.Define(t.Context(), a.DestinationXML))
	m.twice("b", external.PhaseFinishResize, external.HookRequest{})
	m.give() // a message that was repeated late changes nothing
	err := m.hosts["b"].Start(t.Context(), m.uuid, false)
	m.must("start", err)

	_, err = m.hook("a", external.PhaseFinishRevertResize, external.HookRequest{})
	m.wantKind("take the guest back that was not given", err, fault.Busy)
	_, err = m.hook("b", external.PhaseRevertResize, external.HookRequest{})
	m.wantKind("give a guest back that runs", err, fault.Busy)
	m.off("b")
	m.twice("b", external.PhaseRevertResize, external.HookRequest{})
	if got := m.held("b"); got != "" || m.owns("b") {
		t.Errorf("b holds %q, owns %v", got, m.owns("b"))
	}
	m.twice("a", external.PhaseFinishRevertResize, external.HookRequest{})
	err = m.hosts["a"].Start(t.Context(), m.uuid, false)
	m.must("start where it was", err)
	m.same("after the revert", before)
}

func TestForeignCold_ATokenLeavesByAToolsMigrationOnly(t *testing.T) {
	m := newToolsMove(t)
	m.off("a")
	own := migration.Ref{Migration: "77777777-7777-4777-8777-777777777777", Instance: m.uuid, Attempt: 1, Step: hooks.FinishResize}
	err := operation.RecordContext.Ask(t.Context(), m.hosts["a"], own, migration.Context{Source: "a", Destination: "b"})
	m.must("record the context of a migration of Berth's own", err)
	for name, c := range map[string]struct {
		change func(*migration.Ref)
		want   fault.Kind
	}{
		"Berth's own":         {func(*migration.Ref) {}, fault.Forbidden},
		"no name":             {func(r *migration.Ref) { r.Migration = "" }, fault.Invalid},
		"another name":        {func(r *migration.Ref) { r.Migration = "x" }, fault.Invalid},
		"no attempt":          {func(r *migration.Ref) { r.Migration, r.Attempt = toolsColdMove, 0 }, fault.Invalid},
		"a later attempt":     {func(r *migration.Ref) { r.Migration, r.Attempt = toolsColdMove, 7 }, fault.Invalid},
		"back as it goes":     {func(r *migration.Ref) { r.Migration, r.Step = toolsColdMove, hooks.FinishRevertResize }, fault.Invalid},
		"back before it went": {func(r *migration.Ref) { r.Migration, r.Attempt, r.Step = toolsColdMove, 2, hooks.FinishRevertResize }, fault.Busy},
		"one of two":          {func(r *migration.Ref) { r.Migration = toolsColdMove }, fault.Busy},
	} {
		ref := own
		c.change(&ref)
		_, err := m.hosts["a"].External().ReleaseOwnership(t.Context(), ref, "c")
		m.wantKind(name, err, c.want)
	}
	if !m.owns("a") {
		t.Error("the token has left")
	}
}

func TestForeignCold_ATokenLeavesWhereItsSourceWasToldOnly(t *testing.T) {
	const other = "66666666-6666-4666-8666-666666666602"
	m := newToolsMove(t)
	m.off("a")
	before := m.picture()
	ask := func(name, migrationUUID, to, want string, kind fault.Kind) {
		t.Helper()
		_, err := m.hosts["a"].External().ReleaseOwnership(t.Context(), migration.Ref{Migration: migrationUUID, Instance: m.uuid, Attempt: 1, Step: hooks.FinishResize}, to)
		m.wantKind(name, err, kind)
		if rs := fault.ReasonsOf(err); len(rs) != 1 || rs[0].Code != want || rs[0].Change == "" {
			t.Errorf("%s: reasons %+v, want %s", name, rs, want)
		}
		if !m.owns("a") {
			t.Fatalf("%s: the token has left", name)
		}
	}
	tell := func(name, migrationUUID, instance, to string, kind fault.Kind) {
		t.Helper()
		_, err := m.hosts["a"].External().Hook(t.Context(), migrationUUID, external.PhaseResizeInstance, external.HookRequest{Instance: instance, Destination: to})
		m.wantKind(name, err, kind)
	}
	ask("nobody has said anything", toolsColdMove, "b", "not_given", fault.Forbidden)
	m.same("after a refusal", before)
	for name, c := range map[string]struct {
		instance, to string
		want         fault.Kind
	}{
		"no guest":                {"", "b", fault.Invalid},
		"no host":                 {m.uuid, "", fault.Invalid},
		"to itself":               {m.uuid, "a", fault.Invalid},
		"a name that is none":     {m.uuid, strings.Repeat("b", 1000), fault.Invalid},
		"a guest of nobody's":     {other, "b", fault.NotFound},
		"a guest that is no uuid": {"web", "b", fault.NotFound},
	} {
		tell(name, toolsColdMove, c.instance, c.to, c.want)
	}
	m.same("after words that are none", before)

	m.give()
	tell("to another host", toolsColdMove, m.uuid, "c", fault.Exists)
	tell("by another migration", other, m.uuid, "c", fault.Busy)
	ask("another host", toolsColdMove, "c", "not_given", fault.Forbidden)
	ask("another migration", other, "b", "not_given", fault.Forbidden)

	m.twice("a", external.PhaseFinishRevertResize, external.HookRequest{})
	if _, err := m.hosts["a"].External().ReleaseOwnership(t.Context(), migration.Ref{Migration: toolsColdMove, Instance: m.uuid, Attempt: 1, Step: hooks.FinishResize}, "b"); !m.owns("a") {
		t.Fatal("a guest left whose word was taken back")
	} else {
		m.wantKind("after it was taken back", err, fault.Forbidden)
	}
	tell("the same uuid again", toolsColdMove, m.uuid, "b", fault.Forbidden)
	m.same("after it was taken back", before)

	tell("another try", other, m.uuid, "b", "")
	c, err := m.hosts["a"].External().ReleaseOwnership(t.Context(), migration.Ref{Migration: other, Instance: m.uuid, Attempt: 1, Step: hooks.FinishResize}, "b")
	if err != nil || c.To != "b" || m.owns("a") {
		t.Errorf("the guest that may go: %+v, %v", c, err)
	}
	_, err = m.hosts["a"].External().Hook(t.Context(), other, external.PhaseFinishRevertResize, external.HookRequest{})
	m.wantKind("take back what has left", err, fault.Forbidden)
}

func TestForeignCold_AGuestOnAnotherMoveIsNotGiven(t *testing.T) {
	m := newToolsMove(t)
	own := migration.Ref{Migration: "77777777-7777-4777-8777-777777777777", Instance: m.uuid, Attempt: 1}
	err := operation.RecordContext.Ask(t.Context(), m.hosts["a"], own, migration.Context{Source: "a", Destination: "b"})
	m.must("record the context of a migration of Berth's own", err)
	_, err = m.hook("a", external.PhaseResizeInstance, external.HookRequest{Instance: m.uuid, Destination: "b"})
	m.wantKind("given while it moves", err, fault.Busy)
	_, err = m.hosts["a"].External().Hook(t.Context(), own.Migration, external.PhaseResizeInstance, external.HookRequest{Instance: m.uuid, Destination: "b"})
	m.wantKind("by the uuid of Berth's own", err, fault.Forbidden)
}

func TestForeignCold_AWordAboutAGuestThatIsGoneIsForgotten(t *testing.T) {
	m := newToolsMove(t)
	m.give()
	const next = "66666666-6666-4666-8666-666666666609" // looked at after the other
	gone := m.guest("a", "gone").UUID
	_, err := m.hosts["a"].External().Hook(t.Context(), next, external.PhaseResizeInstance, external.HookRequest{Instance: gone, Destination: "b"})
	m.must("give", err)
	m.must("power off", m.hosts["a"].fake.Destroy(t.Context(), gone))
	m.must("delete", m.hosts["a"].Delete(t.Context(), gone, host.DeleteOptions{}))
	words := func() []migration.Ref { return m.hosts["a"].tracker.Remembering("foreign_given") }
	m.followed("a", func() bool { return len(words()) < 2 })
	if left := words(); len(left) != 1 || left[0].Migration != toolsColdMove {
		t.Errorf("words that stand: %+v, want that of %s", left, toolsColdMove)
	}
}

func TestForeignCold_IsRolledBackOrEndsByItself(t *testing.T) {
	for name, undo := range map[string]func(m *toolsMove){
		"rolled back": func(m *toolsMove) { m.twice("b", external.PhaseRollbackPrepResize, external.HookRequest{}) },
		"nobody asks again": func(m *toolsMove) {
			m.clock += time.Hour
			m.followed("b", func() bool { return m.held("b") == "" && m.picture()["b memories"] == nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newToolsMove(t)
			before := m.picture()
			m.prep(nil)
			if got, want := m.held("b"), "resize arriving "+small.Resources().String(); got != want {
				t.Errorf("b holds %q, want %q", got, want)
			}
			undo(m)
			m.same("after the rollback", before)
			_, err := m.hook("b", external.PhasePrepResize, external.HookRequest{Instance: m.uuid, Source: "a", DomainXML: m.document})
			m.wantKind("prepare after the undo", err, fault.Forbidden)
		})
	}
}

// followed lets a host look at foreign claims until what is said holds.
func (m *toolsMove) followed(on string, until func() bool) {
	m.t.Helper()
	ctx, stop := context.WithCancel(m.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = m.hosts[on].External().FollowArrivals(ctx) }()
	waitFor(m.t, "the end of what is left", until)
	stop()
	<-done
}

func TestForeignRebuild_GivesUpWhatTheGuestHeld(t *testing.T) {
	m := newToolsMove(t)
	was := m.held("a")
	pinned := strings.Replace(m.document, "</domain>", "<description>of another image</description></domain>", 1)
	pre := external.HookRequest{Instance: m.uuid, DomainXML: pinned}
	a := m.twice("a", external.PhasePreRebuild, pre)
	if a.Claim == "" || !strings.Contains(a.DestinationXML, "of another image") {
		t.Errorf("prepared: %+v", a)
	}
	if got := m.held("a"); !strings.Contains(got, "rebuild pending") || !strings.Contains(got, "instance bound") {
		t.Errorf("a holds %q, want both", got)
	}
	m.off("a")
	m.must("define", m.hosts["a"].fake.Define(t.Context(), a.DestinationXML))
	if got := m.twice("a", external.PhasePostRebuild, external.HookRequest{}); got.Claim != a.Claim {
		t.Errorf("claim %s is the guest's, want %s", got.Claim, a.Claim)
	}
	if got := m.held("a"); got != was {
		t.Errorf("a holds %q, want %q", got, was)
	}
	_, err := m.hook("a", external.PhaseRollbackRebuild, external.HookRequest{})
	m.wantKind("roll back what is done", err, fault.Forbidden)
	err = m.hosts["a"].Start(t.Context(), m.uuid, false)
	m.must("start", err)
	if p := m.picture(); p["a memories"] != nil {
		t.Errorf("left behind: %v", p["a memories"])
	}
}

func TestForeignRebuild_IsRolledBack(t *testing.T) {
	m := newToolsMove(t)
	before := m.picture()
	m.twice("a", external.PhasePreRebuild, external.HookRequest{Instance: m.uuid, DomainXML: m.document})
	m.twice("a", external.PhaseRollbackRebuild, external.HookRequest{})
	m.same("after the rollback", before)
	_, err := m.hook("a", external.PhasePostRebuild, external.HookRequest{})
	m.wantKind("post after the undo", err, fault.Forbidden)
}

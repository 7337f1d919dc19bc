package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"berth/agent/guard"
	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

const guarded, moved = "8ccd3f5e-4bd3-4b3a-8f3a-0b1f0d5f7c11", "4f2f0a1e-0d6e-4c51-9f0e-1b7f0f6c9a01"

// guardDocument is the guest's document, with Berth's metadata if it names a migration.
func guardDocument(vcpus int, metadata bool, migration string) string {
	meta := ""
	if metadata {
		meta = fmt.Sprintf("<metadata><b:instance xmlns:b='%s' name='web' epoch='1' migration='%s'/></metadata>", domainxml.Namespace, migration)
	}
	return fmt.Sprintf("<domain type='qemu'><name>web</name><uuid>%s</uuid>%s<memory unit='MiB'>64</memory><vcpu>%d</vcpu><os><type>hvm</type></os></domain>", guarded, meta, vcpus)
}

// guardBench is an agent that was opened and does not run.
type guardBench struct {
	*testing.T
	a *Agent
}

func newGuardBench(t *testing.T, mode config.Mode) *guardBench {
	t.Helper()
	o := agentOptions(t, settings(t, nowhere(t)))
	o.Config.Agent.Mode = mode
	a := &Agent{opt: o, log: o.Logger, rt: o.Runtime}
	a.conf.Store(&o.Config)
	if err := a.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.close(); err != nil {
			t.Error(err)
		}
	})
	if mode == config.Manage {
		// Before libvirt was recognised it answers nothing, and the hook goes by files.
		_, err := a.guardian.Guard(t.Context(), guard.Call{Operation: guard.Start, SubOperation: "begin", DomainXML: guardDocument(1, true, "")})
		if !errors.Is(err, fault.Unavailable) {
			t.Errorf("an answer from a ledger that may be another machine's: %v", err)
		}
		a.guardian.recognised()
		a.hypervisor.last.Store(&driver.Node{Hypervisor: "QEMU"})
	}
	return &guardBench{t, a}
}

func (b *guardBench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// ask requires an answer, and gives the reasons' codes of a refusal.
func (b *guardBench) ask(op guard.Operation, document string, allow bool) (guard.Answer, []string) {
	b.Helper()
	answer, err := b.a.guardian.Guard(b.Context(), guard.Call{Guest: "web", Operation: op, SubOperation: "begin", DomainXML: document})
	b.must(err)
	var codes []string
	for _, r := range answer.Reasons {
		codes = append(codes, r.Code)
	}
	if answer.Allow != allow || !allow && len(codes) == 0 {
		b.Errorf("%s: allowed %t, want %t; %s %v", op, answer.Allow, allow, answer.Message, answer.Reasons)
	}
	return answer, codes
}

func (b *guardBench) adopt() {
	b.Helper()
	_, err := b.a.tracker.Adopt(b.Context(), claims.Instance{UUID: guarded, Name: "web"}, claims.Found{Resources: topology.Resources{VCPUs: 1, MemoryMB: 64}})
	b.must(err)
}

func (b *guardBench) owner() guard.OwnerState {
	b.Helper()
	b.must(b.a.guardian.owners.Sync())
	o, _, _ := b.a.guardian.files.Owner(guarded)
	return o.State
}

func TestGuardian_StartsNeedTheToken(t *testing.T) {
	t.Parallel()
	b := newGuardBench(t, config.Manage)
	ctx := t.Context()
	if !guard.Managed(b.a.config().Agent.StateDir) {
		t.Error("an agent in mode manage leaves no marker")
	}
	if _, err := b.a.guardian.Guard(ctx, guard.Call{Operation: guard.Start, SubOperation: "begin", DomainXML: "<domain/>"}); !errors.Is(err, fault.Invalid) {
		t.Errorf("an answer about nobody: %v", err)
	}
	b.ask(guard.Start, guardDocument(1, true, ""), false)
	if list, _ := b.a.guardian.files.Started(); len(list) > 0 {
		t.Errorf("noted for adoption: %v", list)
	}
	b.ask(guard.Prepare, guardDocument(1, false, ""), true)
	b.ask(guard.Start, guardDocument(1, false, ""), true)
	if list, _ := b.a.guardian.files.Started(); !slices.Equal(list, []guard.Started{{Instance: guarded}}) {
		t.Errorf("noted for adoption: %v", list)
	}

	b.adopt()
	for _, op := range []guard.Operation{guard.Restore, guard.Prepare, guard.Start} {
		b.ask(op, guardDocument(1, true, ""), true)
		b.ask(op, guardDocument(1, false, ""), true)
	}
	b.ask(guard.Migrate, guardDocument(1, true, ""), false)
	if got := b.owner(); got != guard.OwnerHere {
		t.Errorf("owner file %q", got)
	}

	// As agent/host notes it.
	left := migration.Ref{Migration: "left-" + guarded, Instance: guarded, Attempt: 1, Step: "left_by_hand"}
	b.must(b.a.tracker.Remember(ctx, left, struct{}{}))
	for op, code := range map[guard.Operation]string{guard.Start: "has_left", guard.Migrate: "left_behind"} {
		if _, codes := b.ask(op, guardDocument(1, false, ""), false); !slices.Equal(codes, []string{code}) {
			t.Errorf("%s: reasons %v, want %s", op, codes, code)
		}
	}
	if got := b.owner(); got != guard.OwnerLeft {
		t.Errorf("owner file of a guest that left by hand: %q", got)
	}
	b.must(b.a.tracker.Unremember(ctx, left))

	ref := migration.Ref{Migration: moved, Instance: guarded, Attempt: 1, Step: "record_context"}
	b.must(b.a.tracker.RecordContext(ctx, ref, claims.MigrationContext{Migration: moved, Instance: guarded, Source: "host-t", Destination: "host-b"}))
	if _, codes := b.ask(guard.Start, guardDocument(1, true, ""), false); !slices.Equal(codes, []string{"moving"}) {
		t.Errorf("reasons %v", codes)
	}
	// It may not be taken for one that nobody manages.
	if got := b.owner(); got != guard.OwnerMoving {
		t.Errorf("owner file of a guest that leaves: %q", got)
	}
	_, err := b.a.tracker.ReleaseOwnership(ctx, ref, "host-b")
	b.must(err)
	if _, codes := b.ask(guard.Start, guardDocument(1, false, ""), false); !slices.Equal(codes, []string{"token_elsewhere"}) {
		t.Errorf("reasons %v", codes)
	}
	if got := b.owner(); got != guard.OwnerGone {
		t.Errorf("owner file of a guest that has left: %q", got)
	}
}

func TestGuardian_ArrivalsOfBerthsOwn(t *testing.T) {
	t.Parallel()
	b := newGuardBench(t, config.Manage)
	ctx := t.Context()
	owner := claims.Owner{Instance: guarded, Migration: moved, Attempt: 1, Kind: claims.KindLiveMigration}
	_, err := b.a.tracker.Claim(ctx, claims.Request{Owner: owner, Resources: topology.Resources{VCPUs: 1, MemoryMB: 64}})
	b.must(err)
	b.ask(guard.Migrate, guardDocument(1, true, moved), false) // not prepared yet
	if got := b.owner(); got != "" {
		t.Errorf("owner file %q of what may not arrive yet", got)
	}
	_, err = b.a.tracker.Arrive(ctx, owner)
	b.must(err)
	if got := b.owner(); got != guard.OwnerArriving {
		t.Errorf("owner file %q", got)
	}
	b.ask(guard.Prepare, guardDocument(1, true, moved), false) // not begun
	b.ask(guard.Migrate, guardDocument(1, true, uuid.NewString()), false)
	if _, codes := b.ask(guard.Migrate, guardDocument(1, true, moved), false); !slices.Equal(codes, []string{"not_prepared"}) {
		t.Errorf("reasons %v, want that nothing is prepared", codes)
	}
	// As agent/host keeps what it prepared. What arrives says 64 vCPUs.
	prepared := map[string]any{"prepared": migration.Prepared{DestinationXML: guardDocument(1, true, moved)}}
	b.must(b.a.tracker.Remember(ctx, migration.Ref{Migration: moved, Instance: guarded, Attempt: 1, Step: "prepared"}, prepared))
	if answer, _ := b.ask(guard.Migrate, guardDocument(64, true, moved), true); answer.DomainXML != guardDocument(1, true, moved) {
		t.Errorf("libvirt is given %q, want what this host prepared", answer.DomainXML)
	}
	// What an earlier move has left here is not what arrives.
	b.ask(guard.Start, guardDocument(1, true, uuid.NewString()), false)
	b.ask(guard.Start, guardDocument(1, false, ""), false)
	b.ask(guard.Prepare, guardDocument(1, true, moved), true)
	b.ask(guard.Start, guardDocument(1, true, moved), true)
	b.ask(guard.Start, guardDocument(1, true, moved), false) // once
	b.must(b.a.tracker.WriteTombstone(ctx, migration.Ref{Migration: moved, Instance: guarded, Attempt: 1, Step: claims.StepClaim}))
	if _, codes := b.ask(guard.Migrate, guardDocument(1, true, moved), false); !slices.Equal(codes, []string{"undone"}) {
		t.Errorf("reasons %v", codes)
	}
	if got := b.owner(); got == guard.OwnerArriving {
		t.Error("its owner file still says that it may arrive")
	}
}

func TestGuardian_ForeignArrivalsAreClaimed(t *testing.T) {
	t.Parallel()
	b := newGuardBench(t, config.Manage)
	if _, codes := b.ask(guard.Migrate, guardDocument(4000, false, ""), false); len(codes) == 0 {
		t.Error("no reasons")
	}
	if list := b.a.tracker.List(); len(list) > 0 {
		t.Errorf("claims after a refusal: %+v", list)
	}
	serial := strings.Replace(guardDocument(1, false, ""), "</domain>", "<devices><serial type='file'><source path='/etc/cron.d/x'/></serial></devices></domain>", 1)
	if _, codes := b.ask(guard.Migrate, serial, false); !slices.Equal(codes, []string{"path_not_allowed"}) {
		t.Errorf("reasons %v for a serial port into a file of the host", codes)
	}
	if list := b.a.tracker.List(); len(list) > 0 {
		t.Errorf("claims after a refusal: %+v", list)
	}
	answer, _ := b.ask(guard.Migrate, guardDocument(1, false, ""), true)
	if !strings.Contains(answer.DomainXML, domainxml.Namespace) {
		t.Errorf("its document is %q, want Berth's metadata in it", answer.DomainXML)
	}
	list := b.a.tracker.List()
	if len(list) != 1 || list[0].State != claims.Arriving || list[0].Owner.Instance != guarded {
		t.Fatalf("claims %+v", list)
	}
	b.ask(guard.Start, guardDocument(1, false, ""), false)
	// A person starts what came by an offline migration.
	came, err := b.a.guardian.Guard(t.Context(), guard.Call{
		Guest: "web", Operation: guard.Prepare, SubOperation: "begin", DomainXML: answer.DomainXML, Defined: guard.ReadDocument(answer.DomainXML).Migration,
	})
	if err != nil || came.Allow || came.Reasons[0].Code != "came_shut_off" {
		t.Errorf("a definition without its token: %+v, %v", came, err)
	}
	b.ask(guard.Prepare, answer.DomainXML, true)
	b.ask(guard.Start, answer.DomainXML, true)
	b.ask(guard.Start, answer.DomainXML, false)
}

func TestGuardian_LooksAtAnArrivalWhenLibvirtHasIt(t *testing.T) {
	t.Parallel()
	b := newGuardBench(t, config.Manage)
	g := b.a.guardian
	b.must(g.files.NoteStarted(guard.Started{Instance: guarded, Arrived: true}))
	b.must(g.files.Begin(guarded, "", b.a.rt.Boot().Since))
	g.lookAtStarted(t.Context())
	if len(g.quarantined) > 0 {
		t.Errorf("looked at before it can be there: %v", g.quarantined)
	}
	b.must(g.files.End(guarded))
	g.lookAtStarted(t.Context())
	if len(g.quarantined) != 1 { // libvirt does not answer here
		t.Errorf("not looked at: %v", g.quarantined)
	}
}

func TestGuardian_ObserveChangesNothing(t *testing.T) {
	b := newGuardBench(t, config.Observe)
	for _, op := range []guard.Operation{guard.Migrate, guard.Restore, guard.Prepare, guard.Start} {
		if answer, _ := b.ask(op, guardDocument(4000, true, moved), true); answer.DomainXML != "" {
			t.Errorf("%s: the document was replaced", op)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b.must(b.a.guardian.keepOwners(ctx))
	if _, err := os.Stat(b.a.config().GuardDir()); err == nil {
		t.Error("files were written")
	}
	if guard.Managed(b.a.config().Agent.StateDir) {
		t.Error("the marker of mode manage was left")
	}
}

func TestGuardian_AStrangersLedgerOwnsNothing(t *testing.T) {
	t.Parallel()
	b := newGuardBench(t, config.Manage)
	b.adopt()
	err := fault.New(fault.Forbidden, "this machine is a copy")
	b.a.stranger.Store(&err)
	b.ask(guard.Start, guardDocument(1, false, ""), false)
	b.ask(guard.Migrate, guardDocument(1, false, ""), false)
	if got := b.owner(); got != "" {
		t.Errorf("owner file %q", got)
	}
}

func TestGuardian_StatusSaysWhetherLibvirtCalls(t *testing.T) {
	t.Parallel()
	b := newGuardBench(t, config.Manage)
	hook := filepath.Join(t.TempDir(), "50-berth")
	require := func(words string) {
		t.Helper()
		if state, _ := b.a.guardian.state(hook); !strings.Contains(state, words) {
			t.Errorf("status says %q, want %q", state, words)
		}
	}
	require("guard not active: " + hook + " is not installed")
	b.must(os.WriteFile(hook, nil, 0o644))
	require("not executable")
	b.must(os.Chmod(hook, 0o755))
	require("guard not active: libvirt has not called it")
}

// TestGuardian_ALostProcess_RefusesTheStart: libvirtd that lost a process starts a second one when
// virsh asks for it. The process is a real one of this machine.
func TestGuardian_ALostProcess_RefusesTheStart(t *testing.T) {
	t.Parallel()
	b := newGuardBench(t, config.Manage)
	const lost = "7d3c1f0a-2222-4f6e-9a55-0c1d2e3f4a5b" // no other test's
	document := strings.ReplaceAll(guardDocument(1, true, ""), guarded, lost)
	_, err := b.a.tracker.Adopt(b.Context(), claims.Instance{UUID: lost, Name: "web"}, claims.Found{Resources: topology.Resources{VCPUs: 1, MemoryMB: 64}})
	b.must(err)
	cmd := exec.Command("sh", "-c", "read x", "-uuid", lost)
	in, err := cmd.StdinPipe()
	b.must(err)
	b.must(cmd.Start())
	for _, op := range []guard.Operation{guard.Restore, guard.Prepare, guard.Start} {
		if _, codes := b.ask(op, document, false); !slices.Equal(codes, []string{"qemu_runs"}) {
			t.Errorf("%s: reasons %v", op, codes)
		}
	}
	b.must(in.Close())
	_ = cmd.Wait() // read fails at the end of its input
	b.ask(guard.Start, document, true)
}

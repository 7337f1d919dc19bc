package guard_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/agent/guard"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/internal/runtime"
)

const instance = "8ccd3f5e-4bd3-4b3a-8f3a-0b1f0d5f7c11"

func document(marked bool, migration string) string {
	meta := ""
	if marked {
		meta = fmt.Sprintf("<metadata><berth:instance xmlns:berth='%s' name='web' epoch='3' migration='%s'/></metadata>", domainxml.Namespace, migration)
	}
	return fmt.Sprintf("<domain type='qemu'><name>web</name><uuid>%s</uuid>%s<memory unit='MiB'>128</memory><vcpu>1</vcpu></domain>", instance, meta)
}

// clock is a runtime whose boot clock a test sets.
type clock struct {
	*runtime.System
	since time.Duration
}

func (c *clock) Boot() runtime.BootTime { return runtime.BootTime{ID: "this-boot", Since: c.since} }

// bench is a hook beside a folder of files.
type bench struct {
	t     *testing.T
	files guard.Files
	hook  guard.Hook
	clock *clock
	out   bytes.Buffer
	err   bytes.Buffer
	asked []guard.Call
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, files: guard.Files{Dir: filepath.Join(t.TempDir(), "guard"), Boot: "this-boot"}, clock: &clock{System: &runtime.System{}, since: time.Hour}}
	b.hook = guard.Hook{
		Files: b.files, Arrivals: guard.ArrivalsRefuse, Runtime: b.clock, Out: &b.out, Err: &b.err,
		Ask: func(_ context.Context, c guard.Call) (guard.Answer, error) {
			b.asked = append(b.asked, c)
			return guard.Answer{}, errors.New("no agent listens")
		},
	}
	return b
}

func (b *bench) call(op, document string) int {
	b.t.Helper()
	b.out.Reset()
	b.err.Reset()
	b.hook.In = strings.NewReader(document)
	return b.hook.Run(b.t.Context(), []string{"web", op, "begin", "-"})
}

func (b *bench) require(op, document string, want int, words string) {
	b.t.Helper()
	if got := b.call(op, document); got != want || !strings.Contains(b.err.String(), words) {
		b.t.Errorf("%s: exit %d, want %d; says %q, want %q in it", op, got, want, b.err.String(), words)
	}
}

func (b *bench) own(o guard.Owner) {
	b.t.Helper()
	o.Instance = instance
	if err := b.files.SetOwner(o); err != nil {
		b.t.Fatal(err)
	}
}

func TestHook_AsksNobodyAboutTheRest(t *testing.T) {
	b := newBench(t)
	b.hook.In = iotestFails{}
	for _, op := range []string{"reconnect", "stopped", "release", "started", "attach"} {
		if got := b.hook.Run(t.Context(), []string{"web", op, "begin", "-"}); got != guard.ExitAllow {
			t.Errorf("%s: exit %d", op, got)
		}
	}
	b.hook.Unmanaged = true
	if got := b.hook.Run(t.Context(), []string{"web", "start", "begin", "-"}); got != guard.ExitAllow {
		t.Errorf("start on a host that was never managed: exit %d", got)
	}
	if len(b.asked) > 0 {
		t.Errorf("the agent was asked: %v", b.asked)
	}
}

type iotestFails struct{}

func (iotestFails) Read([]byte) (int, error) { return 0, errors.New("standard input was read") }

func TestHook_SaysWhatTheAgentSays(t *testing.T) {
	b := newBench(t)
	answer := guard.Answer{Allow: true, DomainXML: "<domain>new</domain>"}
	b.hook.Ask = func(_ context.Context, c guard.Call) (guard.Answer, error) {
		b.asked = append(b.asked, c)
		return answer, nil
	}
	b.require("migrate", document(false, ""), guard.ExitAllow, "")
	if b.out.String() != "<domain>new</domain>" {
		t.Errorf("printed %q", b.out.String())
	}
	b.require("start", document(false, ""), guard.ExitAllow, "")
	if b.out.Len() > 0 {
		t.Errorf("a start printed %q", b.out.String())
	}
	// The agent is told what the guest's definition here says.
	b.hook.Definitions = t.TempDir()
	for content, want := range map[string]string{
		document(true, theirs): theirs, document(false, ""): "", "<domain": "",
		strings.Replace(document(true, theirs), instance, ours, 1): "", // another guest of that name, once
	} {
		if err := os.WriteFile(filepath.Join(b.hook.Definitions, "web.xml"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		b.require("start", document(true, ours), guard.ExitAllow, "")
		if got := b.asked[len(b.asked)-1].Defined; got != want {
			t.Errorf("defined by %q, want %q", got, want)
		}
	}
	answer = guard.Answer{Reasons: []fault.Reason{{Message: "memory is short", Change: "free some"}, {Message: "vcpus too"}}}
	// A good owner file does not overrule the agent.
	b.own(guard.Owner{State: guard.OwnerHere})
	b.require("start", document(false, ""), guard.ExitRefuse, "guest web may not start here: memory is short (free some); vcpus too")
	b.require("migrate", document(false, ""), guard.ExitRefuse, "may not arrive here")
}

func TestHook_AgentDown_StartsNeedTheOwnerFile(t *testing.T) {
	b := newBench(t)
	for _, op := range []string{"prepare", "start", "restore"} {
		b.require(op, document(true, ours), guard.ExitRefuse, "there is no owner file")
		b.require(op, document(false, ""), guard.ExitAllow, "")
	}
	b.own(guard.Owner{State: guard.OwnerHere})
	for _, op := range []string{"prepare", "start", "restore"} {
		b.require(op, document(true, ours), guard.ExitAllow, "")
		b.require(op, document(false, ""), guard.ExitAllow, "")
	}
	for state, words := range map[guard.OwnerState]string{guard.OwnerMoving: "the guest is moving", guard.OwnerLeft: "runs on another host"} {
		b.own(guard.Owner{State: state})
		b.require("start", document(true, ours), guard.ExitRefuse, words)
		b.require("start", document(false, ""), guard.ExitRefuse, words)
	}
	b.own(guard.Owner{State: guard.OwnerGone, Holder: "host-b"})
	b.require("start", document(true, ours), guard.ExitRefuse, "host-b")
	// An adopted guest has no metadata; the file tells that it is managed.
	b.require("start", document(false, ""), guard.ExitRefuse, "host-b")
}

func TestHook_AgentDown_BadFilesSayNo(t *testing.T) {
	good := guard.Owner{Boot: "this-boot", Instance: instance, State: guard.OwnerHere}
	stale, other, odd := good, good, good
	stale.Boot, other.Instance, odd.State = "last-boot", theirs, "maybe"
	noBoot := good
	noBoot.Boot = ""
	text := func(o guard.Owner) string { b, _ := json.Marshal(o); return string(b) }
	for name, content := range map[string]string{
		"stale": text(stale), "of another": text(other), "odd state": text(odd), "no boot": text(noBoot),
		"garbage": "\x00\xff{{{", "empty": "", "cut": text(good)[:20], "huge": text(good) + strings.Repeat(" ", 1<<16),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			path := filepath.Join(b.files.Dir, "owners", instance)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			b.require("start", document(true, ours), guard.ExitRefuse, "nothing proves that its ownership token is here")
			b.require("migrate", document(true, ours), guard.ExitRefuse, "no claim on this host waits for this guest")
			// The file proves that it is managed, if nothing else.
			b.require("start", document(false, ""), guard.ExitRefuse, "nothing proves that its ownership token is here")
			if err := os.WriteFile(path, []byte(text(good)), 0o600); err != nil {
				t.Fatal(err)
			}
			b.require("start", document(true, ours), guard.ExitAllow, "")
		})
	}
}

func TestHook_AgentDown_PipeInPlaceOfAFile(t *testing.T) {
	b := newBench(t)
	for _, dir := range []string{"owners", "begun", "started"} {
		if err := os.MkdirAll(filepath.Join(b.files.Dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mkfifo(filepath.Join(b.files.Dir, dir, instance), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.require("start", document(true, ours), guard.ExitRefuse, "is no file")
	b.require("migrate", document(true, ours), guard.ExitRefuse, "no claim on this host")
	if list, err := b.files.Started(); err != nil || len(list) != 1 {
		t.Errorf("started: %v, %v", list, err)
	}
}

func TestHook_AgentDown_UnreadableFolder(t *testing.T) {
	b := newBench(t)
	// A file where the folder should be is unreadable also for root.
	if err := os.WriteFile(b.files.Dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.require("start", document(true, ours), guard.ExitRefuse, "cannot be read")
	b.require("start", document(false, ""), guard.ExitAllow, "could not be noted")
	b.hook.Arrivals = guard.ArrivalsAllow
	b.require("migrate", document(true, ours), guard.ExitRefuse, "could not be noted")
}

func TestHook_AgentDown_FullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full to fill a disk with:", err)
	}
	b := newBench(t)
	for _, dir := range []string{"begun", "started", "owners"} {
		if err := os.MkdirAll(filepath.Join(b.files.Dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/dev/full", filepath.Join(b.files.Dir, dir, instance+".new")); err != nil {
			t.Fatal(err)
		}
	}
	b.require("start", document(false, ""), guard.ExitAllow, "no space left")
	b.hook.Arrivals = guard.ArrivalsAllow
	b.require("migrate", document(false, ""), guard.ExitRefuse, "no space left")
	// An owner file that cannot be replaced is taken away.
	b2 := newBench(t)
	b2.own(guard.Owner{State: guard.OwnerHere})
	if err := os.Symlink("/dev/full", filepath.Join(b2.files.Dir, "owners", instance+".new")); err != nil {
		t.Fatal(err)
	}
	if err := b2.files.SetOwner(guard.Owner{Instance: instance, State: guard.OwnerGone}); err == nil {
		t.Error("a full disk was written to")
	}
	b2.require("start", document(false, "")+" ", guard.ExitAllow, "")
	b2.require("start", document(true, ours), guard.ExitRefuse, "there is no owner file")
}

func TestHook_AgentDown_Arrivals(t *testing.T) {
	b := newBench(t)
	b.require("migrate", document(true, ours), guard.ExitRefuse, `set [guard] arrivals = "allow"`)
	b.require("start", document(true, ours), guard.ExitRefuse, "")

	b.own(guard.Owner{State: guard.OwnerArriving, Migration: ours})
	b.require("start", document(true, ours), guard.ExitRefuse, "it lives on another host")
	b.require("migrate", document(true, theirs), guard.ExitRefuse, "not that migration's")
	b.require("migrate", document(true, ours), guard.ExitAllow, "")
	// What an earlier move has left here is not what arrives.
	b.require("start", document(true, theirs), guard.ExitRefuse, "it lives on another host")
	b.require("start", document(false, ""), guard.ExitRefuse, "it lives on another host")
	// What libvirt asks for next, once; then a start is a start again.
	b.require("prepare", document(true, ours), guard.ExitAllow, "")
	b.require("start", document(true, ours), guard.ExitAllow, "")
	b.require("start", document(true, ours), guard.ExitRefuse, "it lives on another host")

	// Nor is what came before a reboot.
	b.require("migrate", document(true, ours), guard.ExitAllow, "")
	b.hook.Files.Boot = "next-boot"
	b.require("start", document(true, ours), guard.ExitRefuse, "of an earlier boot")
	b.hook.Files.Boot = "this-boot"

	// An arrival that was let in and never came opens the door for a moment only.
	b.require("migrate", document(true, ours), guard.ExitAllow, "")
	b.clock.since += time.Minute
	b.require("prepare", document(true, ours), guard.ExitRefuse, "it lives on another host")

	b = newBench(t)
	b.hook.Arrivals = guard.ArrivalsAllow
	b.require("migrate", document(true, ours), guard.ExitAllow, "")
	b.require("prepare", document(true, ours), guard.ExitAllow, "")
	b.require("start", document(true, ours), guard.ExitAllow, "")
	if list, err := b.files.Started(); err != nil || len(list) != 1 || list[0] != (guard.Started{Instance: instance, Arrived: true}) {
		t.Errorf("spooled for the agent: %v %v", list, err)
	}
	b.own(guard.Owner{State: guard.OwnerHere})
	b.require("migrate", document(true, ours), guard.ExitRefuse, "second copy")
}

func TestHook_AgentDown_UnmanagedStartsAreSpooled(t *testing.T) {
	b := newBench(t)
	b.require("prepare", document(false, ""), guard.ExitAllow, "")
	if list, err := b.files.Started(); err != nil || len(list) > 0 {
		t.Errorf("spooled before it starts: %v %v", list, err)
	}
	b.require("start", document(false, ""), guard.ExitAllow, "")
	if list, err := b.files.Started(); err != nil || len(list) != 1 || list[0] != (guard.Started{Instance: instance}) {
		t.Errorf("spooled: %v %v", list, err)
	}
	if err := b.files.DropStarted(instance); err != nil {
		t.Fatal(err)
	}
	if list, _ := b.files.Started(); len(list) > 0 {
		t.Errorf("still spooled: %v", list)
	}
}

func TestHook_AgentDown_DocumentsThatAreNotUnderstood(t *testing.T) {
	b := newBench(t)
	b.hook.Arrivals = guard.ArrivalsAllow
	b.require("migrate", "<domain", guard.ExitRefuse, "not understood")
	b.require("start", "<domain", guard.ExitAllow, "")
	b.require("start", "<domain "+domainxml.Namespace, guard.ExitRefuse, "nothing proves")
	// Metadata that makes no sense is Berth's all the same.
	b.require("start", strings.Replace(document(true, ours), "epoch='3'", "epoch='x'", 1), guard.ExitRefuse, "nothing proves")
}

func TestHook_ObserveLetsEverythingThrough(t *testing.T) {
	b := newBench(t)
	b.hook.Observing = true
	for _, op := range operations {
		b.require(string(op), document(true, ours), guard.ExitAllow, "")
		if b.out.Len() > 0 {
			t.Errorf("%s printed %q", op, b.out.String())
		}
	}
}

func TestFiles_CalledTellsThisDaemonFromAnEarlierOne(t *testing.T) {
	dir, proc := t.TempDir(), t.TempDir()
	f := guard.Files{Dir: dir, Boot: "this-boot"}
	stat := func(pid, name, start string) string {
		return pid + " (" + name + ") S 1 1 1 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 21 0 " + start + " 1 2 3\n"
	}
	put := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	require := func(want bool) {
		t.Helper()
		if _, alive := f.Called(proc); alive != want {
			t.Errorf("called by a living daemon: %t, want %t", alive, want)
		}
	}
	require(false)
	put(filepath.Join(dir, "daemon"), stat("77", "libvirtd", "5000"))
	require(false)
	put(filepath.Join(proc, "77", "stat"), stat("77", "libvirtd", "5000"))
	require(true)
	put(filepath.Join(proc, "77", "stat"), stat("77", "libvirtd", "6000"))
	require(false)
	put(filepath.Join(proc, "77", "stat"), stat("77", "bash) (x", "5000"))
	put(filepath.Join(dir, "daemon"), stat("77", "bash) (x", "5000"))
	require(false)
	put(filepath.Join(dir, "daemon"), "../../etc (libvirtd) S 1")
	require(false)
}

func TestManaged_MarkerIsDurableAndRepeatable(t *testing.T) {
	dir := t.TempDir()
	if guard.Managed(dir) {
		t.Error("managed without a marker")
	}
	for range 2 {
		if err := guard.MarkManaged(dir); err != nil {
			t.Fatal(err)
		}
	}
	if !guard.Managed(dir) {
		t.Error("not managed with a marker")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !guard.Managed(file) {
		t.Error("a marker that cannot be read counts as absent")
	}
}

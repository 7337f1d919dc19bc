package docs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/agent/api"
	"berth/test/fleet"
	"berth/test/guest"
	"berth/test/lab"
)

// patience is how long a condition is waited for that comes true by itself, on a machine that is
// busy with much else; pageMost bounds a page.
const (
	patience = 2 * time.Minute
	pageMost = 10 * time.Minute
)

// bench is the pair of hosts on which the pages are run.
type bench struct {
	testing.TB
	*fleet.Fleet
	ctx   context.Context
	guest guest.Guest
	dead  string // the host that has died; empty for none
}

// TestDocs_RunOnTwoHosts runs each block of the pages that says on which host, from the top of its
// page to the bottom, with the guests that the page is about.
func TestDocs_RunOnTwoHosts(t *testing.T) {
	lab.Require(t)
	pages, err := Read("../..", "README.md", "docs")
	if err != nil {
		t.Fatal(err)
	}
	dir := lab.TempDir(t)
	binary, err := fleet.Build(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	g, err := guest.Build(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	common, blocks := pairOf(t, dir, "pair", binary), 0
	for _, p := range pages {
		if !slices.ContainsFunc(p.Blocks, func(b Block) bool { return b.RunOn() != "" }) {
			continue
		}
		t.Run(p.Path, func(t *testing.T) {
			f := common
			if deaths(p) > 0 { // nobody else needs a dead host, nor the records of other pages' guests
				f = pairOf(t, dir, "mortal", binary)
			}
			ctx, cancel := context.WithTimeout(context.Background(), pageMost)
			defer cancel()
			b := &bench{TB: t, Fleet: f, ctx: ctx, guest: g}
			blocks += b.page(p)
		})
	}
	if blocks < 60 && !t.Failed() {
		t.Errorf("only %d blocks were run", blocks)
	}
}

// pairOf brings up two hosts, of which host-b lets a guest have a CPU to itself.
func pairOf(t *testing.T, dir, name, binary string) *fleet.Fleet {
	t.Helper()
	f, err := fleet.Up(t.Context(), fleet.Options{
		Dir: filepath.Join(dir, name), Binary: binary,
		Config: map[string]string{"host-b": "[host]\ndedicated_cpus = \"0\"\nshared_cpus = \"1\"\n"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Down(); err != nil {
			t.Error(err)
		}
	})
	for _, h := range f.Hosts { // where libvirt is installed as usual, it is there
		if err := os.MkdirAll(h.Path("/var/lib/libvirt/images"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// deaths is how many hosts die in a page.
func deaths(p Page) (n int) {
	for _, b := range p.Blocks {
		if b.Dies() != "" {
			n++
		}
	}
	return n
}

// page makes the page's guests, runs its blocks, and takes the guests away.
func (b *bench) page(p Page) (blocks int) {
	names := slices.Concat(p.Guests, p.Domains)
	defer func() {
		for _, name := range names {
			b.remove(name)
		}
	}()
	a := b.Hosts[0]
	for _, name := range names {
		b.document(a, p.Path, name)
	}
	if len(p.Domains) > 0 { // they ran before Berth came: the host is as one that never had an agent
		b.systemctl(a, "stop")
		for _, name := range []string{"berth.db", "berth.db.latest", "managed"} {
			if err := os.Remove(a.Path("/var/lib/berth/" + name)); err != nil {
				b.Fatal(err)
			}
		}
		for _, name := range p.Domains {
			for _, args := range [][]string{{"define", inHost(name)}, {"start", name}} {
				if _, err := a.Virsh(b.ctx, args...); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.systemctl(a, "start")
	}
	for _, name := range p.Guests {
		r, err := b.Berth(b.ctx, a.Name, "instance", "create", name, "--flavor", "small", "--xml", inHost(name), "--start")
		if err != nil || r.Code != 0 {
			b.Fatalf("create %s: %v, exit code %d\n%s", name, err, r.Code, r.Stderr)
		}
	}
	for _, name := range names {
		waiting, cancel := context.WithTimeout(b.ctx, patience)
		_, err := guest.WaitBeat(waiting, a.Console(name), 2)
		if cancel(); err != nil {
			b.Fatalf("%s does not come up: %v", name, err)
		}
	}
	for _, block := range p.Blocks {
		if host := block.Dies(); host != "" {
			var ids []string
			for _, name := range names {
				ids = append(ids, id(p.Path, name))
			}
			b.dies(host, ids)
		}
		if block.RunOn() != "" && !b.run(block) {
			b.Fatalf("%s: what follows is not run", block.Where())
		}
		if block.RunOn() != "" {
			blocks++
		}
	}
	b.wellAndManaged(names)
	return blocks
}

// recorded waits until the fleet's records have a guest of a page at a host.
func (b *bench) recorded(id, host string) {
	from, err := b.Host("host-b")
	if err != nil {
		b.Fatal(err)
	}
	c, err := api.NewClient(api.ClientOptions{Socket: from.Path("/run/berth/berth.sock")})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		asking, cancel := context.WithTimeout(b.ctx, patience)
		in, err := c.FleetInstance(asking, id)
		if cancel(); err == nil && in.Host == host && len(in.Guest) > 0 {
			return
		}
		if time.Now().After(end) {
			b.Fatalf("the records have not guest %s at %s: %+v, %v", id, host, in, err)
		}
	}
}

// dies has a host lose its power, once the fleet's records have its guests.
func (b *bench) dies(name string, guests []string) {
	h, err := b.Host(name)
	if err != nil {
		b.Fatal(err)
	}
	for _, id := range guests {
		b.recorded(id, name)
	}
	b.dead = name
	if err := h.PowerOff(); err != nil {
		b.Fatal(err)
	}
}

// id is a guest's uuid: guests of one name are others on other pages.
func id(page, name string) string {
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte(page+" "+name)).String()
}

func inHost(name string) string { return "/var/lib/libvirt/" + name + ".xml" }

// document writes a guest's document and its disk, which both hosts see.
func (b *bench) document(h *lab.Host, page, name string) {
	disk := filepath.Join(b.SharedDir(), name+".qcow2")
	if _, err := h.Exec(b.ctx, "qemu-img", "create", "-q", "-f", "qcow2", disk, "32M"); err != nil {
		b.Fatal(err)
	}
	text := guest.DomainXML(guest.Options{Name: name, UUID: id(page, name), Guest: b.guest, Disks: []guest.Disk{{Path: disk}}, Beat: 100 * time.Millisecond})
	if err := os.WriteFile(h.Path(inHost(name)), []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
}

// run runs a block's lines in a shell of its host, line after line, up to the first that fails.
// What systemd would do with the agent is done here, since the hosts have none.
func (b *bench) run(block Block) bool {
	h, err := b.Host(block.RunOn())
	if err != nil {
		b.Fatal(err)
	}
	script := ""
	flush := func() bool {
		defer func() { script = "" }()
		return strings.TrimSpace(script) == "" || b.shell(h, block, script)
	}
	for line := range strings.Lines(block.Text) {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "systemctl" {
			script += line
			continue
		}
		if !flush() {
			return false
		}
		if units := strings.Join(words[2:], " "); units != "berth" && units != "berth.socket berth.service" {
			b.Errorf("%s: %s: only the agent is started and stopped here", block.Where(), strings.TrimSpace(line))
			return false
		}
		b.systemctl(h, words[1])
	}
	return flush()
}

// shell runs lines with the binary as berth. Exit code 7 is an answer.
func (b *bench) shell(h *lab.Host, block Block, script string) bool {
	if strings.Contains(script, "UUID_OF_HOST_A") {
		script = strings.ReplaceAll(script, "UUID_OF_HOST_A", b.provider("host-a"))
	}
	wrapped := fmt.Sprintf("set -eo pipefail\ncd /run\nberth() { local rc=0; %q \"$@\" || rc=$?; [ $rc = 7 ] || return $rc; }\n%s", b.Binary, script)
	cmd, err := h.Command(b.ctx, "bash", "-c", wrapped)
	if err != nil {
		b.Fatal(err)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	begun := time.Now()
	err = h.Run(cmd)
	b.Logf("%s on %s, %.1f s:\n%s%s", block.Where(), h.Name, time.Since(begun).Seconds(), script, out.String())
	if _, is := errors.AsType[*exec.ExitError](err); err != nil && !is {
		b.Fatal(err)
	}
	if err != nil {
		b.Errorf("%s: %v", block.Where(), err)
	}
	return err == nil
}

// systemctl does with a host's agent what systemd would.
func (b *bench) systemctl(h *lab.Host, verb string) {
	stopping, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if verb == "stop" || verb == "restart" {
		if err := b.Agent(h.Name).Stop(stopping); err != nil {
			b.Fatalf("stop the agent on %s: %v", h.Name, err)
		}
	}
	switch verb {
	case "stop":
		return
	case "reload":
		b.reload(b.Agent(h.Name))
	case "start", "restart":
		if err := b.StartAgent(b.ctx, h.Name); err != nil {
			b.Fatal(err)
		}
	default:
		b.Fatalf("systemctl %s berth is not known here", verb)
	}
	if err := b.WaitReady(b.ctx, h.Name); err != nil {
		b.Fatal(err)
	}
}

// reload has an agent read its configuration again, and waits until it has, as systemctl does.
func (b *bench) reload(agent *fleet.Process) {
	reads := func() int {
		log, err := os.ReadFile(agent.Log)
		if err != nil {
			b.Fatal(err)
		}
		return bytes.Count(log, []byte("configuration read again"))
	}
	before := reads()
	if err := agent.Cmd.Process.Signal(syscall.SIGHUP); err != nil {
		b.Fatal(err)
	}
	for end := time.Now().Add(patience); reads() == before; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatal("the agent does not read its configuration again")
		}
	}
}

// provider is a host's in Placement, as the other host lists it.
func (b *bench) provider(name string) string {
	var list api.HostList
	if err := b.JSON(b.ctx, "host-b", &list, "host", "list"); err != nil {
		b.Fatal(err)
	}
	for _, h := range list.Hosts {
		if h.Name == name && h.ProviderUUID != "" {
			return h.ProviderUUID
		}
	}
	b.Fatalf("host-b lists no provider of %s: %+v", name, list)
	return ""
}

// wellAndManaged requires at the end of a page that each guest runs once, and that the host which
// has it manages it.
func (b *bench) wellAndManaged(names []string) {
	for _, name := range names {
		var on []string
		for _, h := range b.Hosts {
			if h.Name == b.dead {
				continue
			}
			if state, err := h.Virsh(b.ctx, "domstate", name); err != nil || state != "running" {
				continue
			}
			var i api.InstanceDetail
			if err := b.JSON(b.ctx, h.Name, &i, "instance", "show", name); err != nil {
				b.Error(err)
			} else if on = append(on, h.Name); !i.Managed || i.Host != h.Name || i.Claim == nil {
				b.Errorf("%s runs on %s, and is managed: %v, on %s, claim %v", name, h.Name, i.Managed, i.Host, i.Claim)
			}
		}
		if len(on) != 1 {
			b.Errorf("%s runs on %v at the end of the page", name, on)
		}
	}
}

// remove takes a guest away wherever it is, as far as that goes: a page that failed may have left anything.
func (b *bench) remove(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, h := range b.Hosts {
		if h.Name == b.dead {
			continue
		}
		if exited, _ := b.Agent(h.Name).Exited(); exited {
			if err := errors.Join(b.StartAgent(ctx, h.Name), b.WaitReady(ctx, h.Name)); err != nil {
				b.Error(err)
			}
		}
		if state, err := h.Virsh(ctx, "domstate", name); err != nil || state == "" {
			continue
		}
		for _, args := range [][]string{{"instance", "stop", name, "--force"}, {"instance", "delete", name}} {
			r, err := b.Berth(ctx, h.Name, args...)
			// A host that lost its ledger looks at the store of the fleet's records first.
			for err == nil && r.Code == 9 && strings.Contains(r.Stderr, "have not written theirs again") && ctx.Err() == nil {
				time.Sleep(time.Second)
				r, err = b.Berth(ctx, h.Name, args...)
			}
			if err != nil || r.Code != 0 {
				b.Errorf("berth %s on %s: %v, exit code %d: %s", strings.Join(args, " "), h.Name, err, r.Code, r.Stderr)
			}
		}
	}
	if err := os.Remove(filepath.Join(b.SharedDir(), name+".qcow2")); err != nil {
		b.Error(err)
	}
}

package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"berth/migration"
	"berth/test/guest"
	"berth/test/rpcproxy"
)

// hostileSocket is where a host's agent finds libvirt: a proxy that changes what it sends.
const hostileSocket = "/run/libvirt/hostile.sock"

// TestArrive_LibvirtGetsWhatWasPrepared has a source send other domain XMLs than its destination
// prepared, the live one and the persistent one: a serial port into a file of the host, and
// another instance's disk. The destination's libvirt gets neither.
func TestArrive_LibvirtGetsWhatWasPrepared(t *testing.T) {
	config := map[string]string{}
	for _, name := range []string{"host-a", "host-b"} {
		config[name] = fmt.Sprintf("[libvirt]\nsocket = %q\n", hostileSocket)
	}
	w := hostile(t, config)
	const name = "honest"
	w.boot(w.a, guest.Options{Name: name})
	prepared := map[string]string{ // of the same length: the packet's stays as it is
		"/var/log/libvirt/" + name + ".console": "/etc/cron.d/hostile-" + strings.Repeat("x", len("/var/log/libvirt/"+name+".console")-len("/etc/cron.d/hostile-")),
		images + "/" + name + ".qcow2":          images + "/" + strings.Repeat("z", len(name)) + ".qcow2",
	}
	changed := 0
	rule := w.proxies[w.a.Name].Add(rpcproxy.CallOf(rpcproxy.Perform3Params), rpcproxy.Change(func(p rpcproxy.Packet) []byte {
		for was, now := range prepared {
			changed += bytes.Count(p, []byte(was))
			p = bytes.ReplaceAll(p, []byte(was), []byte(now))
		}
		return p
	}))
	m := w.moves(name)
	select {
	case <-rule.Met():
	default:
		t.Fatal("the source's libvirt was not asked by the proxy")
	}
	if changed < 6 { // console twice and disk once, in both
		t.Fatalf("the hostile source changed %d paths", changed)
	}
	w.require("outcome", m.Outcome, migration.OutcomeCompleted)
	for _, what := range [][]string{{"dumpxml", name}, {"dumpxml", "--inactive", name}} {
		text := w.virsh(w.b, what...)
		for was, now := range prepared {
			if strings.Contains(text, now) || !strings.Contains(text, was) {
				t.Errorf("virsh %v on host-b names %s, want %s:\n%s", what, now, was, text)
			}
		}
	}
	for _, now := range prepared {
		if _, err := os.Stat(w.b.Path(now)); err == nil {
			t.Errorf("host-b has %s", now)
		}
	}
	w.livesOn(name, w.b, w.a)
	w.alive(name, w.a, w.b)
}

// hostileWorld is a world with a proxy between each agent and its libvirt.
type hostileWorld struct {
	*world
	proxies map[string]*rpcproxy.Proxy
}

func hostile(t *testing.T, config map[string]string) *hostileWorld {
	t.Helper()
	w := &hostileWorld{own(t, nil), map[string]*rpcproxy.Proxy{}}
	for _, h := range w.Hosts {
		l, err := net.Listen("unix", h.Path(hostileSocket))
		if err != nil {
			t.Fatal(err)
		}
		w.proxies[h.Name] = rpcproxy.Start(t, l, h.LibvirtSocket())
		w.dropIn(h, config[h.Name])
		w.restart(h)
	}
	return w
}

// moves migrates an instance to host-b and waits for the end.
func (w *world) moves(name string) migration.Migration {
	w.Helper()
	w.berth(w.a, "migrate", name, w.b.Name, "--detach")
	return w.migration(w.a, name, "is over", migration.Migration.Done)
}

// TestArrive_WhatNobodyAllowedIsRefused moves an instance whose own host let it have files and
// arguments that the destination's operator did not allow. Each way is refused with every reason
// and nothing is left; what the refusal says to write lets it pass.
func TestArrive_WhatNobodyAllowedIsRefused(t *testing.T) {
	w := own(t, nil)
	const name = "greedy"
	o := guest.Options{Name: name, Devices: "    <channel type='file'><source path='/etc/greedy.log'/><target type='virtio' name='greedy.0'/></channel>\n"}
	w.xml(w.a, &o)
	path := w.a.Path("/var/lib/libvirt/" + name + ".xml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	more := strings.Replace(string(text), "</domain>", "<qemu:commandline xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><qemu:env name='GREEDY' value='1'/></qemu:commandline></domain>", 1)
	if err := os.WriteFile(path, []byte(more), 0o644); err != nil {
		t.Fatal(err)
	}
	w.berth(w.a, "instance", "create", name, "--flavor", "small", "--xml", "/var/lib/libvirt/"+name+".xml", "--start")
	w.Cleanup(func() { w.remove(name) })
	w.beats(w.a, name, 3)
	for _, way := range [][]string{{"plan", name}, {"migrate", name, w.b.Name}, {"migrate", name, w.b.Name, "--cold"}} {
		if way[0] == "plan" {
			r := w.run(w.a, append(way, "--json")...)
			for _, code := range []string{"path_not_allowed", "qemu_arguments"} {
				if !strings.Contains(r.Stdout, code) {
					t.Errorf("berth plan does not say %s: %s%s", code, r.Stdout, r.Stderr)
				}
			}
			continue
		}
		codes, message := w.refused(3, w.a, way...)
		for _, code := range []string{"path_not_allowed", "qemu_arguments"} {
			if !slices.Contains(codes, code) {
				t.Errorf("berth %v: reasons %v, want %s; %s", way, codes, code, message)
			}
		}
		w.require("domain on host-b", w.domain(w.b, name), "")
		w.livesOn(name, w.a, w.b)
	}
	w.dropIn(w.b, w.Allowed("/etc/greedy.log")+"allow_qemu_arguments = true\n")
	w.restart(w.b)
	m := w.moves(name)
	w.require("outcome", m.Outcome, migration.OutcomeCompleted)
	w.livesOn(name, w.b, w.a)
}

package e2e

import (
	"encoding/json"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/agent/host"
	"berth/test/guest"
	"berth/test/lab"
	"berth/test/rpcproxy"
)

// libvirtdFault is something that goes wrong between an agent and its libvirtd.
type libvirtdFault struct {
	what          string
	broken, heals func()
	says          string        // in the reason that the status gives
	lasts         time.Duration // at least; 0 for until it was noticed
}

// While libvirtd hangs, is dead, cannot be reached, talks nonsense or answers
// pings alone, the agent says so with the reason, says of its guests that it does
// not know, keeps their claims and finds nothing lost; afterwards it is well by
// itself, and hears of what people do to its guests.
//
// The agent's deadline is one second here; it notices within that and the five
// seconds between two pings.
func TestFaults_Libvirtd(t *testing.T) {
	const inside = "/run/libvirt/berth-proxy"
	w := own(t, map[string]string{"host-a": "[libvirt]\nsocket = \"" + inside + "\"\ntimeout = \"1s\"\n"})
	socket := w.a.Path(inside)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	p := rpcproxy.Start(t, l, w.a.LibvirtSocket())
	w.healthy(w.a)
	w.boot(w.a, guest.Options{Name: "f11"})
	claim := w.claimID("f11")
	pid, err := w.a.QEMUPID("f11")
	if err != nil {
		t.Fatal(err)
	}
	on := func(f func(*round) *lab.Host, do func(func(*round) *lab.Host) func(*round)) func() {
		return func() { do(f)(&round{world: w, from: w.a}) }
	}
	hide := func(from, to string) {
		if err := os.Rename(socket+from, socket+to); err != nil {
			w.Fatal(err)
		}
		p.CutAll()
	}
	for _, f := range []libvirtdFault{
		{"SIGSTOP, 10 s", on(source, stopLibvirtd), on(source, continueLibvirtd), "no answer since", 10 * time.Second},
		{"kill -9", on(source, killLibvirtd), on(source, startLibvirtd), "no answer since", 0},
		{"socket gone", func() { hide("", ".away") }, func() { hide(".away", "") }, "no such file", 0},
		{"connections refused", func() { p.Refuse(true); p.CutAll() }, func() { p.Refuse(false) }, "no answer since", 0},
		{"garbage", func() {
			p.Add(rpcproxy.Match{Kind: rpcproxy.Reply, Times: rpcproxy.Always}, rpcproxy.Garbage(4096, 1))
		}, p.Clear, "libvirt sent a packet of", 0},
		{"pings answered, nothing else", func() {
			m := rpcproxy.ReplyOf(rpcproxy.ListAllDomains)
			m.Times = rpcproxy.Always
			p.Add(m, rpcproxy.Drop)
		}, p.Clear, "answers pings and nothing else", 0},
	} {
		f.broken()
		broke := time.Now()
		noticed := w.noticed(f.says)
		w.doubts(claim)
		if rest := f.lasts - time.Since(broke); rest > 0 {
			pause(w, rest)
			w.doubts(claim)
		}
		f.heals()
		healed := time.Now()
		w.healthy(w.a)
		well := time.Since(healed)
		w.eventually(f.what+" is over", func() string {
			list := w.listed()
			if len(list.Instances) != 1 || list.Instances[0].State != "running" || list.Error != "" {
				return "instances " + w.run(w.a, "instance", "list").Stdout
			}
			return ""
		})
		w.require("claim after "+f.what, w.claimID("f11"), claim)
		now, err := w.a.QEMUPID("f11")
		if err != nil || now != pid {
			t.Errorf("%s: QEMU is %d, %v; was %d", f.what, now, err, pid)
		}
		t.Logf("| libvirtd: %s | degraded after %.1f s | well %.1f s after its end |", f.what, noticed.Seconds(), well.Seconds())
	}
	w.beats(w.a, "f11", len(w.beats(w.a, "f11", 1))+2)
	// Events come again: what is undefined is released.
	for _, verb := range []string{"destroy", "undefine"} {
		if _, err := w.a.Virsh(w.ctx, verb, "f11"); err != nil {
			t.Fatal(err)
		}
	}
	w.eventually("f11 is released", func() string {
		if n := len(ask[api.ClaimList](w, w.a, "claim", "list").Claims); n > 0 {
			return "it still has its claim"
		}
		return ""
	})
}

// noticed waits until the status says that libvirt is degraded, with the reason.
func (w *world) noticed(words string) time.Duration {
	w.Helper()
	began := time.Now()
	for {
		st := ask[api.Status](w, w.a, "status")
		var detail string
		for _, c := range st.Conditions {
			if c.Name == "libvirt" && c.Health == api.HealthDegraded && len(c.Reasons) > 0 {
				detail = c.Detail
			}
		}
		if strings.Contains(detail, words) {
			if st.Health != api.HealthDegraded || w.run(w.a, "status").Code == 0 {
				w.Errorf("libvirt is degraded, the host is not: %+v", st)
			}
			return time.Since(began)
		}
		if time.Since(began) > patience {
			w.Fatalf("status says %q, want %q in it", detail, words)
		}
		w.listed() // somebody asks
		pause(w, 50*time.Millisecond)
	}
}

// doubts requires that a guest that cannot be asked for is there all the same.
func (w *world) doubts(claim string) {
	w.Helper()
	list := w.listed()
	if len(list.Instances) != 1 || list.Instances[0].State != host.StateUnknown || list.Error == "" {
		w.Errorf("instances %+v, %q; want one whose state is unknown", list.Instances, list.Error)
	}
	// One guest may still be told of, where lists alone fail.
	d := ask[api.InstanceDetail](w, w.a, "instance", "show", "f11")
	if d.State != host.StateUnknown && d.State != "running" {
		w.Errorf("instance show says %q", d.State)
	}
	w.require("its claim", w.claimID("f11"), claim)
	st := ask[api.Status](w, w.a, "status")
	if st.Instances != 1 || st.Claims != 1 {
		w.Errorf("status counts %d instances, %d claims", st.Instances, st.Claims)
	}
	if st.Audit == nil || len(st.Audit.Lost)+len(st.Audit.Differences) > 0 {
		w.Errorf("the audit says %+v", st.Audit)
	}
}

// listed is the answer of `berth instance list`, with its complaint.
func (w *world) listed() (list api.InstanceList) {
	w.Helper()
	r := w.run(w.a, "instance", "list", "--json")
	if err := json.Unmarshal([]byte(r.Stdout), &list); err != nil {
		w.Fatalf("berth instance list: exit code %d, %v\n%s%s", r.Code, err, r.Stdout, r.Stderr)
	}
	return list
}

// claimID is the claim that a guest has on the first host.
func (w *world) claimID(name string) string {
	w.Helper()
	for _, c := range ask[api.ClaimList](w, w.a, "claim", "list").Claims {
		if c.Name == name {
			return c.ID
		}
	}
	return ""
}

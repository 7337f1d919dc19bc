package host_test

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"berth/agent/host"
	"berth/driver"
	"berth/internal/fault"
)

// kept gives the codes under which instances without a domain are kept, by name.
func (n *node) kept() map[string]string {
	out := map[string]string{}
	for _, h := range n.Vanished() {
		out[h.Name] = h.Reason.Code
	}
	return out
}

// restartLibvirt starts another daemon, which loads what it can.
func (n *node) restartLibvirt(l *lab) {
	l.t.Helper()
	n.fake.KillDaemon()
	l.must("start libvirtd", n.fake.StartDaemon())
}

// Both while the agent watches and while it is down: a definition that libvirtd did not load is
// no undefine, and when it is back the instance starts with the claim that it had.
func TestFollow_DefinitionNotLoaded_KeepsTheInstance(t *testing.T) {
	for _, down := range []bool{false, true} {
		name := map[bool]string{false: "agent watches", true: "agent is down"}[down]
		t.Run(name, func(t *testing.T) {
			l := newLab(t, "a")
			a := l.hosts["a"]
			v := l.guest("a", "web")
			l.guest("a", "db")
			l.must("stop", a.Stop(t.Context(), "web", host.StopOptions{Force: true}))
			stop := l.followed("a")
			was, allocated := l.holds("a", v.UUID), len(l.placement.all()[v.UUID].Allocations)
			if down {
				stop()
				a.Close()
			}
			a.fake.DamageDefinition(v.UUID, true)
			a.restartLibvirt(l)
			if down {
				a = l.boot("a", nil)
				l.must("settle", a.Settle(t.Context()))
				l.followed("a")
			}
			waitFor(t, "the instance to be named", func() bool { return a.kept()["web"] == "definition_not_loaded" })
			if now := l.holds("a", v.UUID); now != was || allocated == 0 || len(l.placement.all()[v.UUID].Allocations) != allocated {
				t.Fatalf("it holds %s, want %s", now, was)
			}
			a.fake.DamageDefinition(v.UUID, false)
			a.restartLibvirt(l)
			waitFor(t, "the name to go", func() bool { return len(a.kept()) == 0 })
			l.must("start", a.Start(t.Context(), "web", false))
			l.state("a", v.UUID, driver.Running)
		})
	}
}

// Several that vanish at once are kept, also when the agent starts anew, and each by itself once
// an operator has said of the other that it is gone.
func TestFollow_SeveralVanishAtOnce_ReleasesNone(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	one, two, three := l.guest("a", "one"), l.guest("a", "two"), l.guest("a", "three")
	for _, name := range []string{"one", "two", "three"} {
		l.must("stop", a.Stop(t.Context(), name, host.StopOptions{Force: true}))
	}
	l.followed("a")()
	a.Close()
	l.must("undefine", errors.Join(a.fake.Undefine(t.Context(), one.UUID), a.fake.Undefine(t.Context(), two.UUID)))
	for range 2 {
		a = l.boot("a", nil)
		l.must("settle", a.Settle(t.Context()))
		stop := l.followed("a")
		waitFor(t, "both to be named", func() bool { return a.kept()["one"] == "vanished_together" && a.kept()["two"] == "vanished_together" })
		stop()
		a.Close()
	}
	a = l.boot("a", nil)
	l.followed("a")
	l.must("an operator says that it is gone", a.Delete(t.Context(), "one", host.DeleteOptions{}))
	l.soon("a", one.UUID, "nothing")
	waitFor(t, "the other to be named", func() bool { return a.kept()["two"] == "vanished_together" })
	if l.holds("a", two.UUID) == "nothing" || l.holds("a", three.UUID) == "nothing" {
		t.Error("released with the one that an operator named")
	}
	l.must("and of the other", a.Delete(t.Context(), "two", host.DeleteOptions{}))
	l.soon("a", two.UUID, "nothing")
	// One that goes alone goes as before: by its event, or by its file.
	l.must("undefine", a.fake.Undefine(t.Context(), three.UUID))
	l.soon("a", three.UUID, "nothing")
}

// Several that are undefined while the agent watches go by their events.
func TestFollow_SeveralUndefined_ReleasesAll(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	var uuids []string
	for _, name := range []string{"one", "two", "three"} {
		uuids = append(uuids, l.guest("a", name).UUID)
		l.must("stop", a.Stop(t.Context(), name, host.StopOptions{Force: true}))
	}
	l.followed("a")
	listening := l.guest("a", "probe").UUID
	l.must("undefine a running one", a.fake.Undefine(t.Context(), listening))
	l.must("end it", a.fake.Destroy(t.Context(), listening))
	l.soon("a", listening, "nothing")
	for _, uuid := range uuids {
		l.must("undefine", a.fake.Undefine(t.Context(), uuid))
	}
	for _, uuid := range uuids {
		l.soon("a", uuid, "nothing")
	}
}

// A folder that is not mounted releases nothing, neither with one instance nor with several,
// running or not: those that run seem transient then, and may end.
func TestFollow_DefinitionsNotMounted_ReleasesNothing(t *testing.T) {
	for _, names := range [][]string{{"web"}, {"web", "db"}} {
		l := newLab(t, "a")
		a := l.hosts["a"]
		uuids := map[string]string{}
		for _, name := range names {
			uuids[name] = l.guest("a", name).UUID
		}
		stop := l.followed("a")
		stop()
		a.Close()
		a.fake.UnmountDefinitions(true)
		a.restartLibvirt(l)
		a = l.boot("a", nil)
		l.must("settle", a.Settle(t.Context()))
		l.followed("a")
		for _, name := range names {
			l.must("power off from within", a.fake.Destroy(t.Context(), uuids[name]))
		}
		waitFor(t, "all to be named", func() bool { return len(a.kept()) == len(names) })
		for _, name := range names {
			if code := a.kept()[name]; code != "definitions_unreadable" || l.holds("a", uuids[name]) == "nothing" {
				t.Errorf("%s is named for %q and holds %s", name, code, l.holds("a", uuids[name]))
			}
		}
		a.fake.UnmountDefinitions(false)
		a.restartLibvirt(l)
		waitFor(t, "the names to go", func() bool { return len(a.kept()) == 0 })
		for _, name := range names {
			l.must("start", a.Start(t.Context(), name, false))
		}
		a.Close()
	}
}

// A QEMU process overrules list, event and folder; an operator's delete is refused for it too.
func TestFollow_ProcessLives_KeepsTheInstance(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	v := l.guest("a", "web")
	l.guest("a", "db")
	a.Close()
	lives := &aliveProcess{uuid: v.UUID}
	lives.pid.Store(4711)
	a = l.boot("a", func(o *host.Options) { o.Processes = lives })
	l.followed("a")
	l.must("destroy", a.fake.Destroy(t.Context(), v.UUID))
	l.must("undefine", a.fake.Undefine(t.Context(), v.UUID))
	waitFor(t, "the instance to be named", func() bool { return a.kept()["web"] == "process_lives" })
	err := a.Delete(t.Context(), "web", host.DeleteOptions{Force: true})
	if !errors.Is(err, fault.Forbidden) || !slices.ContainsFunc(fault.ReasonsOf(err), func(r fault.Reason) bool { return r.Code == "qemu_runs" && r.Have == "4711" }) {
		t.Errorf("delete: %v", err)
	}
	lives.pid.Store(0)
	l.soon("a", v.UUID, "nothing")
}

// aliveProcess is a QEMU process of one instance, while its pid is not 0.
type aliveProcess struct {
	uuid string
	pid  atomic.Int64
}

func (p *aliveProcess) Of(uuid string) ([]int, error) {
	if pid := int(p.pid.Load()); pid != 0 && uuid == p.uuid {
		return []int{pid}, nil
	}
	return nil, nil
}

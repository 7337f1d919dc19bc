package driver

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"berth/driver"
	"berth/internal/fault"
	"berth/test/lab"
	"berth/test/rpcproxy"
)

// daemonFault is something that happens to the daemon before or during a call.
type daemonFault struct {
	what string
	// hold is what is kept on its way until the fault is there: the call or the
	// answer; Any for nothing, the call is made afterwards.
	hold rpcproxy.Kind
	// unsent: the driver has noticed before the call is made.
	unsent bool
	// limit is the calls' deadline; usual says that they are answered within it.
	limit         time.Duration
	usual         bool
	broken, heals func(t *testing.T, h *lab.Host)
	// after is how long the fault lasts once the calls are on their way; 0 for
	// until they have returned.
	after time.Duration
}

func daemonFaults() []daemonFault {
	pause := func(t *testing.T, h *lab.Host) {
		if err := h.PauseLibvirtd(); err != nil {
			t.Fatal(err)
		}
	}
	goOn := func(t *testing.T, h *lab.Host) { goesOn(t, h) }
	kill := func(t *testing.T, h *lab.Host) {
		if err := h.KillLibvirtd(within(t, 2*time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	stop := func(t *testing.T, h *lab.Host) {
		if err := h.StopLibvirtd(within(t, 2*time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	start := func(t *testing.T, h *lab.Host) {
		if err := h.StartLibvirtd(within(t, 2*time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	hide := func(from, to string) func(*testing.T, *lab.Host) {
		return func(t *testing.T, h *lab.Host) {
			if err := os.Rename(h.LibvirtSocket()+from, h.LibvirtSocket()+to); err != nil {
				t.Fatal(err)
			}
		}
	}
	none := func(*testing.T, *lab.Host) {}
	const long = time.Minute
	return []daemonFault{
		{what: "SIGSTOP before the call", limit: deadline, broken: pause, heals: goOn},
		{what: "SIGSTOP during the call", hold: rpcproxy.Call, limit: 2 * deadline, broken: pause, heals: goOn},
		{what: "SIGSTOP during the call, shorter than its deadline", hold: rpcproxy.Call, limit: long, usual: true, broken: pause, heals: goOn, after: deadline},
		{what: "socket file gone", limit: long, usual: true, broken: hide("", ".away"), heals: hide(".away", "")},
		{what: "kill -9 with the call on its way", hold: rpcproxy.Call, limit: long, broken: kill, heals: start},
		{what: "kill -9 with the answer on its way", hold: rpcproxy.Reply, limit: long, broken: kill, heals: start},
		{what: "restart with the answer on its way", hold: rpcproxy.Reply, limit: long, broken: func(t *testing.T, h *lab.Host) { stop(t, h); start(t, h) }, heals: none},
		{what: "kill -9 before the call", unsent: true, limit: long, broken: kill, heals: start},
	}
}

func TestRPC_EveryVerbWhileTheDaemonStopsOrDies(t *testing.T) { rpcBinding.faultsOfTheDaemon(t) }

// faultsOfTheDaemon lets all verbs meet each fault together, since they share the
// daemon.
func (n binding) faultsOfTheDaemon(t *testing.T) {
	h := lab.Start(t, lab.Options{Names: []string{"host-a"}}).Hosts[0]
	table := newTable(t)
	var all []*bench
	for _, v := range verbs() {
		b := n.bench(t, h.LibvirtSocket())
		b.v = v
		b.learn()
		all = append(all, b)
	}
	for _, f := range daemonFaults() {
		n.together(t, h, table, f, all)
	}
}

func (n binding) together(t *testing.T, h *lab.Host, table *table, f daemonFault, all []*bench) {
	t.Helper()
	resynced := make([]<-chan struct{}, len(all))
	at := make([]step, len(all)) // which call the fault befalls
	release := make(chan struct{})
	var held []*rpcproxy.Rule
	for i, b := range all {
		b.ready()
		b.settled()
		at[i] = b.steps[0]
		if slices.Contains(b.steps, b.v.order) {
			at[i] = b.v.order
		}
		if f.hold != rpcproxy.Any {
			// An answer must not slip through before the proxy sees that the daemon is gone.
			lost := f.hold == rpcproxy.Reply
			held = append(held, b.p.Add(at[i].match(f.hold), rpcproxy.Action{Hold: release, Drop: lost, Cut: lost}))
		}
		resynced[i] = b.nextResync()
	}
	type answer struct {
		err  error
		took time.Duration
	}
	answers := make([]answer, len(all))
	var calls sync.WaitGroup
	callAll := func() {
		for i, b := range all {
			calls.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), f.limit)
				defer cancel()
				began := time.Now()
				err := b.v.call(ctx, b.d, b.id)
				answers[i] = answer{err, time.Since(began)}
			})
		}
	}
	if f.hold != rpcproxy.Any {
		callAll()
		for i, r := range held {
			select {
			case <-r.Met():
			case <-time.After(2 * time.Minute):
				t.Fatalf("%s: no call of %s was met", f.what, all[i].v.name)
			}
		}
	}
	f.broken(t, h)
	broke := time.Now()
	if f.unsent {
		for _, b := range all {
			b.unwell()
		}
	}
	close(release)
	if f.hold == rpcproxy.Any {
		callAll()
	}
	if f.after > 0 {
		<-time.After(f.after)
	} else {
		calls.Wait()
	}
	f.heals(t, h)
	healed := time.Now()
	calls.Wait()
	for i, b := range all {
		a := answers[i]
		want := b.allowed(wireFault{usual: f.usual}, at[i])
		if f.unsent {
			want = []string{string(fault.Unavailable)}
		} else if f.hold == rpcproxy.Any && !f.usual {
			want = append(want, string(fault.Unavailable)) // it may have had to connect first
		}
		if got := kindOf(a.err); !slices.Contains(want, got) {
			t.Errorf("%s: %s: %s (%v), want %v", f.what, b.v.name, got, a.err, want)
		}
		bound := f.limit + patience
		if !f.usual && f.limit > 2*deadline {
			bound = healed.Sub(broke) + 2*patience // the connection ended
		}
		if a.took > bound {
			t.Errorf("%s: %s took %v, want no more than %v", f.what, b.v.name, a.took, bound)
		}
		b.settled()
		table.add(row{f.what, b.v.name, kindOf(a.err), a.took, time.Since(healed)})
		if f.what[:4] == "kill" {
			select {
			case <-resynced[i]:
			case <-time.After(recovery):
				t.Errorf("%s: %s: no resync within %v", f.what, b.v.name, recovery)
			}
		}
		b.p.Clear()
	}
}

// unwell waits until the driver has noticed.
func (b *bench) unwell() {
	b.Helper()
	for limit := within(b.T, recovery); b.d.Health() == nil; {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-limit.Done():
			b.Fatalf("calls itself well after %v without a daemon", recovery)
		}
	}
}

// nextResync is closed at the next resync of the driver's events but those that
// are there already.
func (b *bench) nextResync() <-chan struct{} {
	b.Helper()
	ctx := b.Context()
	events, err := b.d.Events(ctx)
	if err != nil {
		b.Fatal(err)
	}
	out := make(chan struct{})
	go func() {
		closed := false
		for e := range events { // until the driver is closed
			if e.Kind == driver.EventResync && !closed {
				closed = true
				close(out)
			}
		}
	}()
	return out
}

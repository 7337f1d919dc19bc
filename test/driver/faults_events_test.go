package driver

import (
	"testing"
	"time"

	"berth/test/lab"
	"berth/test/rpcproxy"
)

// Whatever befalls the connection of events, its readers are told to read again
// once it is there anew, and the driver is well by itself. An event that is
// swallowed whole on a connection that lives is the one loss that nobody can see.
func TestRPC_EventsComeAgainAfterEveryFault(t *testing.T) { rpcBinding.faultsOfEvents(t) }

func (n binding) faultsOfEvents(t *testing.T) {
	h := lab.Start(t, lab.Options{Names: []string{"host-a"}}).Hosts[0]
	table := newTable(t)
	n.ping = 500 * time.Millisecond
	b := n.bench(t, h.LibvirtSocket())
	b.v = verb{name: "Events", active: true}
	event := rpcproxy.Match{Kind: rpcproxy.Event, Procedure: rpcproxy.EventLifecycle}
	register := rpcproxy.Match{Kind: rpcproxy.Reply, Procedure: rpcproxy.RegisterEvents, Skip: 1}
	for _, f := range []struct {
		what   string
		match  rpcproxy.Match
		action rpcproxy.Action
		again  bool // the connection is cut first, so that it registers anew
	}{
		{"ping dropped", rpcproxy.CallOf(rpcproxy.GetLibVersion), rpcproxy.Drop, false},
		{"ping's reply dropped", rpcproxy.ReplyOf(rpcproxy.GetLibVersion), rpcproxy.Drop, false},
		{"ping's reply garbled", rpcproxy.ReplyOf(rpcproxy.GetLibVersion), rpcproxy.Shorten(4), false},
		{"connection cut instead of an event", event, rpcproxy.CutInstead, false},
		{"event cut in the middle", event, rpcproxy.Truncate(40), false},
		{"event of length 5", event, rpcproxy.Set(rpcproxy.Length, 5), false},
		{"event with a name of 2 GiB", event, rpcproxy.Payload(1, 1<<31-1), false},
		{"garbage instead of an event", event, rpcproxy.Garbage(4096, 3), false},
		{"registration's reply dropped", register, rpcproxy.Drop, true},
		{"registration's reply garbled", register, rpcproxy.Shorten(4), true},
		{"connection cut while it registers", register, rpcproxy.CutInstead, true},
	} {
		b.ready()
		b.settled()
		resynced := b.nextResync()
		r := b.p.Add(f.match, f.action)
		began := time.Now()
		if f.again {
			b.p.CutAll()
		}
		change := time.NewTicker(20 * time.Millisecond)
		for paused, met := false, false; !met; paused = !paused {
			// Something happens that there are events of.
			ctx := within(t, recovery)
			do := b.truth.Suspend
			if paused {
				do = b.truth.Resume
			}
			if err := do(ctx, b.id); err != nil {
				t.Fatal(err)
			}
			select {
			case <-r.Met():
				met = true
			case <-change.C:
			case <-ctx.Done():
				t.Fatalf("%s: nothing was met", f.what)
			}
		}
		change.Stop()
		r.Remove()
		select {
		case <-resynced:
		case <-time.After(recovery):
			t.Fatalf("%s: no resync within %v", f.what, recovery)
		}
		took := time.Since(began)
		table.add(row{f.what, "Events", "resync", took, b.settled()})
	}
}

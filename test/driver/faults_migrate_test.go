package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"berth/driver"
	"berth/driver/libvirt"
	"berth/internal/fault"
	"berth/test/guest"
	"berth/test/lab"
	"berth/test/rpcproxy"
)

// moveFault is what goes wrong during one migration.
type moveFault struct {
	what string
	// between is a fault between the two daemons, asked one between driver and
	// source; each is one packet's.
	between, asked *packetFault
	// hangs: nobody notices. The driver's caller gives up after a while, then asks
	// for the end of the job, and then every connection between the daemons is cut.
	hangs bool
	kinds []string // honest answers
	pairs []string // allowed states of source and destination, without their reasons
}

type packetFault struct {
	rpcproxy.Match
	rpcproxy.Action
}

// The states that a migration may leave. A copy at the destination is paused, and
// only where the source's is shut off as migrated is it the guest.
const (
	stayed   = "running, no domain"
	leftover = "running, paused"
	moved    = "shut off, paused"
)

func moveFaults() []moveFault {
	on := func(m rpcproxy.Match, a rpcproxy.Action) *packetFault { return &packetFault{m, a} }
	prepare, finish, perform := uint32(rpcproxy.Prepare3Params), uint32(rpcproxy.Finish3Params), uint32(rpcproxy.Perform3Params)
	undone, doubt, done, unavailable := string(fault.Undone), string(fault.InDoubt), kindOf(nil), string(fault.Unavailable)
	u := []string{undone}
	return []moveFault{
		{what: "Prepare: connection cut before the call", between: on(rpcproxy.CallOf(prepare), rpcproxy.CutInstead), kinds: u, pairs: []string{stayed}},
		{what: "Prepare: connection cut instead of the reply", between: on(rpcproxy.ReplyOf(prepare), rpcproxy.CutInstead), kinds: u, pairs: []string{stayed}},
		{what: "Prepare: reply garbled", between: on(rpcproxy.ReplyOf(prepare), rpcproxy.Payload(0, 1<<31-1)), kinds: u, pairs: []string{stayed}},
		{what: "Prepare: reply late by 1 s", between: on(rpcproxy.ReplyOf(prepare), rpcproxy.Delay(time.Second)), kinds: []string{done}, pairs: []string{moved}},
		{what: "Prepare: reply dropped", hangs: true, between: on(rpcproxy.ReplyOf(prepare), rpcproxy.Drop), kinds: []string{doubt}, pairs: []string{stayed}},
		{what: "Finish: call dropped", hangs: true, between: on(rpcproxy.CallOf(finish), rpcproxy.Drop), kinds: []string{doubt}, pairs: []string{stayed, leftover}},
		{what: "Finish: connection cut before the call", between: on(rpcproxy.CallOf(finish), rpcproxy.CutInstead), kinds: u, pairs: []string{stayed, leftover}},
		{what: "Finish: connection cut instead of the reply", between: on(rpcproxy.ReplyOf(finish), rpcproxy.CutInstead), kinds: u, pairs: []string{leftover}},
		{what: "Finish: reply garbled", between: on(rpcproxy.ReplyOf(finish), rpcproxy.Payload(0, 1<<31-1)), kinds: []string{undone, doubt}, pairs: []string{stayed, leftover}},
		{what: "Finish: reply with status 7", between: on(rpcproxy.ReplyOf(finish), rpcproxy.Set(rpcproxy.Status, 7)), kinds: []string{undone, doubt}, pairs: []string{stayed, leftover}},
		{what: "Finish: reply dropped", hangs: true, between: on(rpcproxy.ReplyOf(finish), rpcproxy.Drop), kinds: []string{doubt}, pairs: []string{leftover}},
		{what: "Perform: connection cut before the call", asked: on(rpcproxy.CallOf(perform), rpcproxy.CutInstead), kinds: []string{doubt}, pairs: []string{stayed}},
		{what: "Perform: connection cut instead of the reply", asked: on(rpcproxy.ReplyOf(perform), rpcproxy.CutInstead), kinds: []string{doubt}, pairs: []string{moved}},
		{what: "Perform: reply garbled", asked: on(rpcproxy.ReplyOf(perform), rpcproxy.Set(rpcproxy.Status, 9)), kinds: []string{doubt}, pairs: []string{moved}},
		{what: "look before it: reply cut", asked: on(rpcproxy.ReplyOf(rpcproxy.GetState), rpcproxy.CutInstead), kinds: []string{unavailable}, pairs: []string{stayed}},
	}
}

// movers is a guest between two hosts, with a proxy before the source's daemon and
// one between the daemons.
type movers struct {
	*testing.T
	src, dst         *libvirt.Driver // past the proxies
	through          *libvirt.Driver // the source, through asked
	asked, betweener *rpcproxy.Proxy
	id               string
	m                driver.Migration
}

func TestMigrate_UnderEveryFaultBetweenTheDaemons(t *testing.T) {
	l, src, dst, id, m := pairOf(t, guest.Options{})
	table := newTable(t)
	w := &movers{T: t, src: src, dst: dst, id: id, m: m}
	var to, before string
	w.betweener, to = startProxy(t, l.Hosts[1].LibvirtSocket())
	w.asked, before = startProxy(t, l.Hosts[0].LibvirtSocket())
	o := options(t, l.Hosts[0])
	o.Socket = before
	w.through = open(t, o)
	w.m.DestinationURI, w.m.MigrateURI = "qemu+unix:///system?socket="+to, "tcp://"+l.Hosts[1].MigIP()
	for _, f := range moveFaults() {
		w.suffer(table, f)
	}
	w.aJobsVerbs(table, l.Hosts[0])
}

func (w *movers) suffer(table *table, f moveFault) {
	w.Helper()
	const limit = 2 * time.Minute
	var r *rpcproxy.Rule
	if f.between != nil {
		r = w.betweener.Add(f.between.Match, f.between.Action)
	} else {
		r = w.asked.Add(f.asked.Match, f.asked.Action)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if f.hangs {
		go func() {
			select {
			case <-r.Met():
				<-time.After(deadline)
				cancel() // its caller's patience
			case <-ctx.Done():
			}
		}()
	}
	began := time.Now()
	err := w.through.Migrate(ctx, w.id, w.m)
	took := time.Since(began)
	if r.Count() != 1 {
		w.Errorf("%s: it was met %d times: %v", f.what, r.Count(), err)
	}
	if !slices.Contains(f.kinds, kindOf(err)) {
		w.Errorf("%s: %v, want %v", f.what, err, f.kinds)
	}
	if took > limit+patience {
		w.Errorf("%s: it took %v", f.what, took)
	}
	ended := time.Now()
	if f.hangs {
		w.giveUp(f.what)
	}
	w.Logf("%s: %s after %v: source %s, destination %s", f.what, kindOf(err), took, state(w.T, w.src, w.id), state(w.T, w.dst, w.id))
	w.pair(f)
	table.add(row{f.what, "Migrate", kindOf(err), took, time.Since(ended)})
	w.asked.Clear()
	w.betweener.Clear()
	w.home()
}

// giveUp ends a migration that hangs: by an order, which may be refused or not be
// heard, and by the end of the connection between the daemons.
func (w *movers) giveUp(what string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	began := time.Now()
	err := w.src.AbortJob(ctx, w.id)
	w.Logf("%s: AbortJob: %v after %v", what, err, time.Since(began))
	w.betweener.CutAll()
}

// pair waits for one of the allowed pairs of states, which must then stay.
func (w *movers) pair(f moveFault) {
	w.Helper()
	limit := time.After(2 * time.Minute)
	for {
		a, b := w.bare(w.src), w.bare(w.dst)
		job, err := w.src.Job(within(w.T, 2*time.Minute), w.id)
		if slices.Contains(f.pairs, a+", "+b) && err == nil && job.Kind == driver.JobNone {
			return
		}
		if b == "running" {
			w.Fatalf("%s: the copy runs at the destination, the source is %s", f.what, a)
		}
		select {
		case <-limit:
			w.Fatalf("%s: source %s, destination %s, job %s %v; want one of %q", f.what, a, b, job.Kind, err, f.pairs)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// bare is a domain's state without its reason.
func (w *movers) bare(d *libvirt.Driver) string {
	w.Helper()
	v, err := d.Domain(within(w.T, 2*time.Minute), w.id)
	switch {
	case errors.Is(err, fault.NotFound):
		return "no domain"
	case err != nil:
		w.Fatal(err)
	}
	return string(v.State)
}

// home makes the guest run at the source, and be unknown at the destination.
func (w *movers) home() {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	err := w.dst.Destroy(ctx, w.id)
	if errors.Is(err, fault.NotFound) {
		err = nil
	}
	if err := errors.Join(err, w.dst.Undefine(ctx, w.id), w.src.Start(ctx, w.id, false)); err != nil {
		w.Fatal(fmt.Errorf("put the guest back: %w", err))
	}
}

// aJobsVerbs loses the answers of everything that is asked about a migration in
// flight, each time with its connection; the migration must not notice.
func (w *movers) aJobsVerbs(table *table, source *lab.Host) {
	w.Helper()
	if err := source.Limit(w.Context(), lab.Mig, 4); err != nil {
		w.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- w.through.Migrate(context.Background(), w.id, w.m) }()
	awaitJob(w.T, w.src, w.id)
	for _, v := range verbs() {
		var order uint32
		switch v.name {
		case "Job", "DiskCopies":
			order = 0 // whatever it asks
		case "SetMaxDowntime", "SetBandwidth", "AbortJob":
			order = v.order.procedure
		default:
			continue
		}
		r := w.asked.Add(rpcproxy.Match{Kind: rpcproxy.Reply, Procedure: order, If: func(p rpcproxy.Packet) bool {
			return p.Head(rpcproxy.Procedure) != rpcproxy.GetLibVersion && p.Head(rpcproxy.Procedure) != rpcproxy.Perform3Params
		}}, rpcproxy.CutInstead)
		began := time.Now()
		err := v.call(within(w.T, 2*time.Minute), w.through, w.id)
		took := time.Since(began)
		want := string(fault.Unavailable)
		if v.changes() {
			want = string(fault.InDoubt)
		}
		if r.Count() != 1 || kindOf(err) != want {
			w.Errorf("%s during a migration: %v, want %s; %d answers were lost", v.name, err, want, r.Count())
		}
		table.add(row{"answer lost during a migration", v.name, kindOf(err), took, 0})
		r.Remove()
	}
	// The order to abort was lost too, and has been heard.
	select {
	case err := <-done:
		if !errors.Is(err, fault.Undone) {
			w.Errorf("Migrate: %v, want undone", err)
		}
	case <-time.After(2 * time.Minute):
		w.Fatal("Migrate does not end")
	}
	w.pair(moveFault{what: "aborted", pairs: []string{stayed}})
}

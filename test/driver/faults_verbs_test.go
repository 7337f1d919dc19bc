package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/driver"
	"berth/driver/libvirt"
	"berth/internal/fault"
	"berth/test/rpcproxy"
)

// verb is one method of the driver, as the fault tests call it.
type verb struct {
	name string
	// order is the call that changes something; zero for a verb that reads.
	order step
	// active is the state that the domain must be in for the verb to do something.
	active bool
	call   func(ctx context.Context, d *libvirt.Driver, id string) error
}

// again says that libvirt's test driver refuses the order of a verb, which then
// gives it in another form: when that does not leave, nothing has happened.
func (v verb) again() bool { return v.name == "Undefine" }

func (v verb) changes() bool { return v.order != step{} }

func discard[T any](_ T, err error) error { return err }

// verbs are all methods of driver.Driver and of the optional interfaces that ask
// the daemon, but Migrate: faults of that are in faults_migrate_test.go.
func verbs() []verb {
	type ctx = context.Context
	type drv = *libvirt.Driver
	return []verb{
		{"Node", step{}, true, func(c ctx, d drv, _ string) error { return discard(d.Node(c)) }},
		{"Domains", step{}, true, func(c ctx, d drv, _ string) error { return discard(d.Domains(c)) }},
		{"Domain", step{}, true, func(c ctx, d drv, id string) error { return discard(d.Domain(c, id)) }},
		{"XML", step{}, true, func(c ctx, d drv, id string) error { return discard(d.XML(c, id, driver.Live)) }},
		{"Define", remote(350), false, func(c ctx, d drv, id string) error { return d.Define(c, testDomain(id)) }},
		{"Undefine", remote(231), false, func(c ctx, d drv, id string) error { return d.Undefine(c, id) }},
		{"Start", remote(196), false, func(c ctx, d drv, id string) error { return d.Start(c, id, false) }},
		{"Suspend", remote(34), true, func(c ctx, d drv, id string) error { return d.Suspend(c, id) }},
		{"Resume", remote(28), true, func(c ctx, d drv, id string) error { return d.Resume(c, id) }},
		{"Shutdown", remote(33), true, func(c ctx, d drv, id string) error { return d.Shutdown(c, id) }},
		{"Destroy", remote(12), true, func(c ctx, d drv, id string) error { return d.Destroy(c, id) }},
		{"SetAutostart", remote(29), false, func(c ctx, d drv, id string) error { return d.SetAutostart(c, id, true) }},
		{"CheckCPU", step{}, true, func(c ctx, d drv, id string) error {
			return d.CheckCPU(c, strings.Replace(testDomain(id), "</vcpu>", "</vcpu><cpu mode='custom'><model>qemu64</model></cpu>", 1))
		}},
		{"Job", step{}, true, func(c ctx, d drv, id string) error { return discard(d.Job(c, id)) }},
		{"CompletedJob", step{}, true, func(c ctx, d drv, id string) error { return discard(d.CompletedJob(c, id)) }},
		{"AbortJob", remote(164), true, func(c ctx, d drv, id string) error { return d.AbortJob(c, id) }},
		{"SetMaxDowntime", remote(166), true, func(c ctx, d drv, id string) error { return d.SetMaxDowntime(c, id, time.Second) }},
		{"SetBandwidth", remote(207), true, func(c ctx, d drv, id string) error { return d.SetBandwidth(c, id, 1<<20) }},
		{"DiskCopies", step{}, true, func(c ctx, d drv, id string) error { return discard(d.DiskCopies(c, id)) }},
		{"StartPostCopy", remote(364), true, func(c ctx, d drv, id string) error { return d.StartPostCopy(c, id) }},
		// Of a guest that is in no post-copy they order nothing.
		{"FailPostCopy", step{}, true, func(c ctx, d drv, id string) error { return d.FailPostCopy(c, id) }},
		{"RecoverPostCopy", step{}, true, func(c ctx, d drv, id string) error {
			return d.RecoverPostCopy(c, id, driver.Migration{DestinationURI: "qemu+tcp://127.0.0.1:1/system", DestinationXML: testDomain(id), PersistentXML: testDomain(id)})
		}},
		{"PingAgent", step{}, true, func(c ctx, d drv, id string) error { return d.PingAgent(c, id) }},
		{"FreezeFilesystems", afterPing, true, func(c ctx, d drv, id string) error { return discard(d.FreezeFilesystems(c, id)) }},
		{"ThawFilesystems", afterPing, true, func(c ctx, d drv, id string) error { return discard(d.ThawFilesystems(c, id)) }},
		{"Statistics", step{}, true, func(c ctx, d drv, _ string) error { return discard(d.Statistics(c)) }},
		{"HostDevices", step{}, true, func(c ctx, d drv, _ string) error { return discard(d.HostDevices(c)) }},
	}
}

// step is one call that a verb makes: the program and the procedure.
type step struct{ program, procedure uint32 }

func remote(procedure uint32) step { return step{rpcproxy.ProgramRemote, procedure} }

func (s step) match(kind rpcproxy.Kind) rpcproxy.Match {
	return rpcproxy.Match{Kind: kind, Program: s.program, Procedure: s.procedure}
}

// afterPing is the order of a verb that asks by the same procedure first whether
// the guest has an agent. Guests of libvirt's test driver have none, so that it is
// never seen.
var afterPing = step{rpcproxy.ProgramQEMU, 0}

// notVerbs are procedures by which connections are opened and looked after:
// CONNECT_OPEN, _CLOSE, _SUPPORTS_FEATURE, AUTH_LIST, GET_LIB_VERSION (the ping),
// and the registrations of events and of the close callback.
var notVerbs = []uint32{1, 2, 60, 66, 157, 316, 360, 374}

func testDomain(id string) string {
	return fmt.Sprintf("<domain type='test'><name>t-%s</name><uuid>%s</uuid><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type>hvm</type></os></domain>", id[:8], id)
}

// bench is one verb between a driver behind a proxy and a driver without, which
// tells the truth, at libvirt's test driver.
type bench struct {
	*testing.T
	v     verb
	id    string
	truth *libvirt.Driver
	p     *rpcproxy.Proxy
	d     *libvirt.Driver
	n     binding
	nth   int // of the verb
	// steps are the calls that the verb makes when nothing is wrong, and usual is
	// what it answers then: libvirt's test driver cannot do everything.
	steps []step
	usual error
}

// ready puts the domain into the state that the verb needs.
func (b *bench) ready() {
	b.Helper()
	limit, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for {
		err := b.prepare(limit)
		if err == nil {
			return
		}
		// A daemon that was killed takes the connection of the truth with it too.
		select {
		case <-time.After(20 * time.Millisecond):
		case <-limit.Done():
			b.Fatal(err)
		}
	}
}

func (b *bench) prepare(ctx context.Context) error {
	if err := b.truth.Define(ctx, testDomain(b.id)); err != nil {
		return err
	}
	if !b.v.active {
		return errors.Join(b.truth.Destroy(ctx, b.id), b.truth.SetAutostart(ctx, b.id, false))
	}
	err := errors.Join(b.truth.Start(ctx, b.id, false), b.truth.Resume(ctx, b.id))
	if b.v.name == "Resume" {
		err = errors.Join(err, b.truth.Suspend(ctx, b.id))
	}
	return err
}

// learn calls the verb once without a fault.
func (b *bench) learn() {
	b.Helper()
	b.ready()
	b.settled() // so that there is a connection
	stop := b.p.Observe(func(p rpcproxy.Packet) {
		s := step{p.Head(rpcproxy.Program), p.Head(rpcproxy.Procedure)}
		// Neither handshakes nor what the connection of events does, and keeps alive.
		if p.Kind() == rpcproxy.Call && s.program != rpcproxy.ProgramKeepalive && !slices.Contains(b.steps, s) && !slices.Contains(notVerbs, s.procedure) {
			b.steps = append(b.steps, s)
		}
	})
	b.usual = b.v.call(within(b.T, 2*time.Minute), b.d, b.id)
	stop()
	if len(b.steps) == 0 {
		b.Fatalf("it asks nothing: %v", b.usual)
	}
}

// settled waits until the driver calls itself well and answers, and requires that
// it then says what is true. It says how long that took. Until then a call that
// reads may be unavailable, and nothing else.
func (b *bench) settled() time.Duration {
	b.Helper()
	began := time.Now()
	limit, cancel := context.WithTimeout(context.Background(), recovery)
	defer cancel()
	for {
		err := b.d.Health()
		if err == nil {
			var got driver.Domain
			got, err = b.d.Domain(limit, b.id)
			if !errors.Is(err, fault.Unavailable) {
				took := time.Since(began)
				want, werr := b.truth.Domain(limit, b.id)
				for errors.Is(werr, fault.Unavailable) && limit.Err() == nil {
					want, werr = b.truth.Domain(limit, b.id)
				}
				if got != want || kindOf(err) != kindOf(werr) {
					b.Errorf("a fresh call says %+v, %v; true is %+v, %v", got, err, want, werr)
				}
				return took
			}
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-limit.Done():
			b.Fatalf("not well within %v: %v", recovery, err)
		}
	}
}

func kindOf(err error) string {
	if err == nil {
		return "done"
	}
	return string(fault.KindOf(err))
}

// binding is one way to libvirt's test driver inside a daemon.
type binding struct {
	dial libvirt.Dialer
	uri  func(socket string) string
	// patience is the deadline of calls whose end the fault itself should bring. The
	// native library passes over much that makes no sense, and waits on.
	patience time.Duration
	ping     time.Duration // its deadline; 0 for 5 s
	// share is how many verbs share the faults of the wire among them, unless
	// BERTH_FAULTS=all; 0 for every verb meeting all.
	share int
}

// all asks for what takes longer.
func all() bool { return os.Getenv("BERTH_FAULTS") == "all" }

// everyVerb runs f for each verb, each with its own driver, proxy and domain at
// the host's test driver. Several at a time, whatever -parallel says: they wait
// most of the time.
func (n binding) everyVerb(t *testing.T, socket string, f func(*bench)) {
	turns := make(chan struct{}, 8)
	var going sync.WaitGroup
	for i, v := range verbs() {
		going.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			t.Run(v.name, func(t *testing.T) {
				b := n.bench(t, socket)
				b.v, b.nth = v, i
				b.learn()
				f(b)
			})
		})
	}
	going.Wait()
}

func (n binding) bench(t *testing.T, socket string) *bench {
	t.Helper()
	b := &bench{T: t, id: uuid.NewString(), n: n}
	var proxied string
	b.p, proxied = startProxy(t, socket)
	b.d = open(t, n.options(proxied))
	n.ping = 0
	b.truth = open(t, n.options(socket))
	return b
}

func (n binding) options(socket string) libvirt.Options {
	return libvirt.Options{
		Dial: n.dial, Socket: socket, URI: n.uri(socket), PingInterval: 200 * time.Millisecond, PingTimeout: cmp.Or(n.ping, 5*time.Second),
		CallTimeout: 2 * time.Second, ReconnectMin: time.Millisecond, ReconnectMax: 200 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	}
}

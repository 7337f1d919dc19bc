package lease

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth/agent/api"
	"berth/fleet"
	"berth/fleet/fleettest"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/runtime/runtimetest"
	"berth/internal/store/storetest"
	"berth/internal/watchdog"
)

var errSilentHost = fault.Refuse(fault.Unavailable, "ask another host's agent", fault.Reason{Code: "no_answer", Message: "it did not answer in time"})

// dog is a watchdog that keeps what is done to it, and when it would reset the host.
type dog struct {
	t       *testing.T
	mu      sync.Mutex // guards the rest
	opened  int
	fed     int
	held    bool
	timeout time.Duration
	resets  time.Time // zero while it is not armed
	broken  bool      // it never resets
	refuses error
	deaf    error // of Feed
}

func (d *dog) open(_ string, timeout time.Duration) (Device, watchdog.Facts, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuses != nil {
		return nil, watchdog.Facts{}, d.refuses
	}
	if d.held {
		d.t.Error("it is opened twice")
	}
	d.opened, d.held, d.timeout = d.opened+1, true, timeout
	d.begin()
	return d, watchdog.Facts{Identity: "dog", Timeout: timeout}, nil
}

func (d *dog) begin() {
	if d.dead() {
		d.t.Error("it is fed after it has reset the host")
	}
	d.resets = time.Now().Add(d.timeout)
}

func (d *dog) dead() bool { return !d.broken && !d.resets.IsZero() && !time.Now().Before(d.resets) }

// reset reports whether the host was reset; when is when it was or is to be.
func (d *dog) reset() (was bool, when time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dead(), d.resets
}

func (d *dog) Feed() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.deaf != nil {
		return d.deaf
	}
	d.fed++
	d.begin()
	return nil
}

func (d *dog) Disarm() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.resets, d.held = time.Time{}, false
	return nil
}

func (d *dog) Abandon() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held = false
	return nil
}

// watched is a keeper with its store, its host's record and its watchdog, all on the test's own
// time.
type watched struct {
	*Keeper
	*dog
	t       *testing.T
	rt      *runtimetest.Bubble
	store   *fleettest.Memory
	client  *fleettest.Client
	records *fleet.Records
	notes   *storetest.Memory
	// The dog's mutex guards these too; set changes them.
	mayArm  bool
	fate    func(fleettest.Call) fleettest.Outcome // nil for all is answered
	reopens int
	refused bool                     // etcd's members refuse connections, instead of saying that they serve nobody
	others  map[string]api.StoreSeen // what other hosts say of the store; who is missing is silent

	stop func()
}

// refusing are records in an etcd whose members refuse connections, or a firewall does.
type refusing struct {
	*fleet.Records
	w *watched
}

func (r refusing) NoQuorum(ctx context.Context) (bool, error) {
	r.w.dog.mu.Lock()
	refused := r.w.refused
	r.w.dog.mu.Unlock()
	if refused {
		return true, nil
	}
	return r.Records.NoQuorum(ctx)
}

const watchedHost = "host-w"

// watch runs a test of a keeper whose lease is 30 s and whose window is 8 s.
func watch(t *testing.T, test func(t *testing.T, w *watched)) {
	synctest.Test(t, func(t *testing.T) {
		rt := runtimetest.NewBubble()
		w := &watched{t: t, rt: rt, dog: &dog{t: t}, store: fleettest.NewMemory(rt), notes: storetest.NewMemory(), mayArm: true}
		w.client = w.store.Client(watchedHost)
		w.client.Before = func(_ context.Context, c fleettest.Call) fleettest.Outcome {
			w.dog.mu.Lock()
			defer w.dog.mu.Unlock()
			if w.fate == nil {
				return fleettest.Answered
			}
			return w.fate(c)
		}
		w.records = fleet.New(w.client, rt)
		if err := w.records.PutHost(t.Context(), fleet.Host{Name: watchedHost, Boot: "boot-1"}); err != nil {
			t.Fatal(err)
		}
		w.begin("/dev/dog")
		test(t, w)
		w.stop()
		rt.Wait()
	})
}

// begin starts a keeper, as an agent does. stop is its orderly end.
func (w *watched) begin(path string) {
	w.Keeper = New(Options{
		Host: watchedHost, Boot: "boot-1", Records: func() (Records, error) { return refusing{w.records, w}, nil },
		Ask: func(_ context.Context, host string) (api.StoreSeen, error) {
			w.dog.mu.Lock()
			defer w.dog.mu.Unlock()
			word, there := w.others[host]
			if !there {
				return api.StoreSeen{}, errSilentHost
			}
			return word, nil
		},
		Fleet:  config.Fleet{Lease: config.Duration(30 * time.Second), SelfFence: path, SelfFenceTimeout: config.Duration(10 * time.Second)},
		Memory: w.notes, Open: w.open,
		MayArm: func() bool {
			w.dog.mu.Lock()
			defer w.dog.mu.Unlock()
			return w.mayArm
		},
		Reopen: func(path string, timeout time.Duration) (Device, watchdog.Facts, error) {
			w.set(func() { w.reopens++ })
			return w.open(path, timeout)
		},
		Runtime: w.rt, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		if err := w.Run(ctx); err != nil {
			w.t.Error(err)
		}
	}()
	w.stop = func() { cancel(); <-over }
}

// pass lets time go by.
func (w *watched) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *watched) recorded() bool {
	w.t.Helper()
	for _, r := range w.store.Records() {
		if r.Key == "hosts/"+watchedHost {
			return strings.Contains(string(r.Value), `"self_fence":true`)
		}
	}
	w.t.Fatal("the host has no record")
	return false
}

func (w *watched) alive() bool {
	return slices.ContainsFunc(w.store.Records(), func(r fleet.Record) bool { return r.Key == "alive/"+watchedHost })
}

// cut takes this host's way to the store, or gives it back.
func (w *watched) cut(off bool) {
	w.set(func() {
		w.fate = nil
		if off {
			w.fate = func(fleettest.Call) fleettest.Outcome { return fleettest.Refused }
		}
	})
}

// set changes what the keeper meets.
func (w *watched) set(change func()) {
	w.dog.mu.Lock()
	defer w.dog.mu.Unlock()
	change()
}

func (w *watched) health(part string) api.Condition {
	w.t.Helper()
	for _, c := range w.Conditions() {
		if c.Name == part {
			return c
		}
	}
	w.t.Fatalf("there is no condition %s", part)
	return api.Condition{}
}

func TestKeeper_IsArmedThenToldThenDisarmedInOrder(t *testing.T) {
	watch(t, func(t *testing.T, w *watched) {
		w.set(func() { w.mayArm = false })
		w.pass(20 * time.Second)
		if w.opened != 0 || !w.alive() {
			t.Errorf("opened %d times by a host that is not known to be itself; alive %v", w.opened, w.alive())
		}
		w.set(func() { w.mayArm = true })
		w.pass(10 * time.Minute)
		if was, _ := w.reset(); was || !w.recorded() || w.fed < 500 {
			t.Errorf("reset %v, on record %v, fed %d times in ten minutes", was, w.recorded(), w.fed)
		}
		if c := w.health("watchdog"); c.Health != api.HealthOK || !strings.HasPrefix(c.Detail, "armed: /dev/dog (dog)") {
			t.Errorf("health %+v", c)
		}
		n := len(w.store.Records())
		revision := w.store.Records()[n-1].Revision
		w.pass(10 * time.Minute)
		if got := w.store.Records()[n-1].Revision; got != revision {
			t.Errorf("the record was written in a steady state: revision %d, then %d", revision, got)
		}
		w.stop()
		if _, when := w.reset(); !when.IsZero() || w.recorded() || len(w.notes.Records()) != 0 {
			t.Errorf("after an orderly stop it resets at %v, on record %v, notes %v", when, w.recorded(), w.notes.Records())
		}
	})
}

func TestKeeper_ACutHostIsResetBeforeItsLeaseEnds(t *testing.T) {
	watch(t, func(t *testing.T, w *watched) {
		if err := w.elsewhere().PutHost(t.Context(), fleet.Host{Name: "host-c", Boot: "boot-1"}); err != nil {
			t.Fatal(err)
		}
		w.pass(2 * time.Minute) // who the others are is read each minute, and put on record
		w.cut(true)
		w.pass(9 * time.Second)
		if c := w.health("watchdog"); c.Health == api.HealthOK || !strings.HasPrefix(c.Detail, "starving") {
			t.Errorf("health of the watchdog %+v", c)
		}
		if c := w.health("lease"); c.Health == api.HealthOK || c.Reasons[0].Code != "lease_lost" {
			t.Errorf("health of the lease %+v", c)
		}
		_, when := w.reset()
		w.pass(time.Until(when))
		if was, _ := w.reset(); !was || !w.alive() {
			t.Errorf("reset %v while the lease stands %v", was, w.alive())
		}
		w.set(func() { w.broken = true }) // what follows is of a host that is not there any more
		w.pass(15 * time.Second)
		if w.alive() {
			t.Error("the lease does not end")
		}
		elsewhere := w.elsewhere()
		_, err := elsewhere.DeclareDeadByLease(t.Context(), watchedHost, "host-c", "host:host-c")
		for began := time.Now(); errors.Is(err, fault.Busy) && time.Since(began) < 31*time.Second; {
			w.pass(5 * time.Second)
			_, err = elsewhere.DeclareDeadByLease(t.Context(), watchedHost, "host-c", "host:host-c")
		}
		if err != nil {
			t.Errorf("its end is no proof: %v", err)
		}
	})
}

func TestKeeper_ShortFaultsStarveNobody(t *testing.T) {
	watch(t, func(t *testing.T, w *watched) {
		w.pass(time.Minute)
		for range 20 {
			w.cut(true)
			w.pass(12 * time.Second) // past the window, within the watchdog's time
			w.cut(false)
			w.pass(5 * time.Second)
			if was, _ := w.reset(); was {
				t.Fatal("reset")
			}
		}
		if c := w.health("watchdog"); c.Health != api.HealthOK {
			t.Errorf("health %+v", c)
		}
	})
}

func TestKeeper_TheLossOfAllOfEtcdResetsNobody(t *testing.T) {
	watch(t, func(t *testing.T, w *watched) {
		w.pass(time.Minute)
		w.store.SetDown(true)
		w.pass(time.Hour)
		if was, _ := w.reset(); was {
			t.Fatal("reset")
		}
		if c := w.health("lease"); c.Health == api.HealthOK || c.Reasons[0].Code != "lease_no_quorum" {
			t.Errorf("health of the lease %+v", c)
		}
		w.store.SetDown(false)
		w.pass(time.Minute)
		if was, _ := w.reset(); was || !w.alive() || !w.recorded() {
			t.Errorf("reset %v, alive %v, on record %v", was, w.alive(), w.recorded())
		}
	})
}

func TestKeeper_WhereItCannotBeTakenBackItStaysArmed(t *testing.T) {
	watch(t, func(t *testing.T, w *watched) {
		w.pass(time.Minute)
		w.store.SetDown(true)
		w.stop()
		was, when := w.reset()
		if was || when.IsZero() || w.held || !w.recorded() {
			t.Fatalf("reset %v, at %v; held %v, on record %v", was, when, w.held, w.recorded())
		}
		// The next agent is in time: not before the store has answered, though.
		w.begin("/dev/dog")
		w.pass(2 * time.Second)
		if w.reopens != 0 {
			t.Error("opened, which feeds it, without a lease")
		}
		w.store.SetDown(false)
		w.set(func() { w.mayArm = false }) // libvirt has not answered yet
		w.pass(time.Minute)
		if was, _ := w.reset(); was || w.reopens != 1 {
			t.Errorf("reset %v, opened anew %d times", was, w.reopens)
		}
	})
}

func TestKeeper_AnEarlierConfigurationsWatchdogIsDisarmed(t *testing.T) {
	for _, path := range []string{"", "/dev/other"} {
		watch(t, func(t *testing.T, w *watched) {
			w.pass(time.Minute)
			w.store.SetDown(true)
			w.stop()
			w.store.SetDown(false)
			w.begin(path)
			w.pass(8 * time.Second)
			if was, _ := w.reset(); was {
				t.Fatal("reset")
			}
			if _, when := w.reset(); path == "" && (!when.IsZero() || w.recorded()) {
				t.Errorf("without one configured it resets at %v, on record %v", when, w.recorded())
			}
			w.pass(time.Minute)
			if path != "" && !w.recorded() {
				t.Error("the new one is not on record")
			}
		})
	}
}

func TestKeeper_AWatchdogThatDoesNotResetProvesNothing(t *testing.T) {
	watch(t, func(t *testing.T, w *watched) {
		w.pass(time.Minute)
		w.set(func() { w.broken = true })
		w.cut(true)
		w.pass(time.Minute)
		if c := w.health("watchdog"); c.Health == api.HealthOK || c.Reasons[0].Code != "watchdog_failed" {
			t.Errorf("health %+v", c)
		}
		fed := w.fed
		w.cut(false)
		w.pass(time.Minute)
		if w.recorded() || w.fed != fed || w.held {
			t.Errorf("on record %v, fed %d times more, held %v", w.recorded(), w.fed-fed, w.held)
		}
		if c := w.health("watchdog"); c.Health == api.HealthOK {
			t.Errorf("health afterwards %+v", c)
		}
	})
}

func TestKeeper_ADeviceThatCannotBeHadIsTriedAgain(t *testing.T) {
	watch(t, func(t *testing.T, w *watched) {
		w.set(func() {
			w.refuses = fault.Refuse(fault.NotFound, "arm watchdog /dev/dog", fault.Reason{Code: "watchdog_absent", Message: "there is no /dev/dog"})
		})
		w.pass(time.Minute)
		if c := w.health("watchdog"); c.Health == api.HealthOK || w.recorded() || len(w.notes.Records()) != 0 {
			t.Errorf("health %+v, on record %v, notes %v", c, w.recorded(), w.notes.Records())
		}
		w.set(func() { w.refuses = nil })
		w.pass(20 * time.Second)
		if !w.recorded() {
			t.Error("it is there, and not armed")
		}
		// One that is lost is opened anew.
		w.set(func() { w.deaf = errors.New("connection lost") })
		w.pass(3 * time.Second)
		w.set(func() { w.deaf = nil })
		w.pass(time.Minute)
		if was, _ := w.reset(); was || w.reopens == 0 {
			t.Errorf("reset %v, opened anew %d times", was, w.reopens)
		}
	})
}

func TestKeeper_AWriteThatLandsLateDoesNotArmTheRecord(t *testing.T) {
	watch(t, func(t *testing.T, w *watched) {
		w.set(func() {
			w.fate = func(c fleettest.Call) fleettest.Outcome {
				if c.Verb == "commit" {
					return fleettest.Late
				}
				return fleettest.Answered
			}
		})
		w.pass(10 * time.Second)
		if w.recorded() || w.fed == 0 {
			t.Fatalf("on record %v, fed %d times", w.recorded(), w.fed)
		}
		w.cut(false)

		w.stop()
		if w.store.Land() == 0 {
			t.Error("no write was kept back: the test looks at nothing")
		}
		if _, when := w.reset(); !when.IsZero() || w.recorded() {
			t.Errorf("resets at %v, on record %v", when, w.recorded())
		}
	})
}

// elsewhere are the records as another host has them.
func (w *watched) elsewhere() *fleet.Records { return fleet.New(w.store.Client("host-c"), w.rt) }

// TestKeeper_LooksAtALeaseThatIsOverUntilItIsAProof: whoever comes back when he was told to has it.
func TestKeeper_LooksAtALeaseThatIsOverUntilItIsAProof(t *testing.T) {
	watch(t, func(t *testing.T, w *watched) {
		if err := w.records.PutHost(t.Context(), fleet.Host{Name: "host-s", Boot: "boot-1", SelfFence: true, Lease: 20}); err != nil {
			t.Fatal(err)
		}
		declare := func() error {
			_, err := w.records.DeclareDeadByLease(t.Context(), "host-s", watchedHost, "host:host-w")
			return err
		}
		if err := declare(); !errors.Is(err, fault.Busy) || !fault.HasReason(err, fleet.ReasonLeaseOverLately) || len(fault.ReasonsOf(err)) != 1 {
			t.Errorf("at once: %v", err)
		}
		time.Sleep(15 * time.Second)
		if err := declare(); !errors.Is(err, fault.Busy) {
			t.Errorf("too early: %v", err)
		}
		time.Sleep(6 * time.Second)
		if err := declare(); err != nil {
			t.Errorf("when its length is over: %v", err)
		}
	})
}

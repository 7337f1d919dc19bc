package driver

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"berth/driver"
	"berth/driver/libvirt"
	"berth/internal/fault"
	"berth/test/guest"
	"berth/test/lab"
)

// A daemon that comes back must know its guests before it answers, or an agent
// would take them for gone. So a running guest and one that is only defined are
// asked for all the time, by lists and by name, on lasting and on new connections,
// while the daemon is killed, stopped in order, and hangs: what is not an error
// has both, each in its state. Nothing is left of the lost connections.
func TestRPC_ARestartedDaemonLacksNoGuest(t *testing.T) {
	h := lab.Start(t, lab.Options{Names: []string{"host-a"}}).Hosts[0]
	g, err := guest.Build(within(t, 2*time.Minute), "")
	if err != nil {
		t.Fatal(err)
	}
	d := open(t, options(t, h))
	on, off := defined(t, d, guest.Options{Guest: g}), defined(t, d, guest.Options{Guest: g})
	if err := d.Start(within(t, 2*time.Minute), on, false); err != nil {
		t.Fatal(err)
	}
	ask := func(d *libvirt.Driver) error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		list, err := d.Domains(ctx)
		if err != nil {
			return err
		}
		for _, id := range []string{on, off} {
			var v driver.Domain
			for _, listed := range list {
				if listed.UUID == id {
					v = listed
				}
			}
			if v.UUID == "" || v.Active() != (id == on) {
				t.Errorf("listed are %+v, of which %s is to be active: %v", list, id, id == on)
			}
			v, err := d.Domain(ctx, id)
			if err != nil {
				return err
			}
			if v.Active() != (id == on) {
				t.Errorf("it is %+v, to be active: %v", v, id == on)
			}
		}
		return nil
	}
	stop := make(chan struct{})
	var asking sync.WaitGroup
	var mu sync.Mutex // guards the counts
	answers, refusals := 0, 0
	hammer := func(anew bool) {
		o := options(t, h)
		o.Logger = rpcBinding.options("").Logger
		d := libvirt.New(o)
		defer func() { _ = d.Close() }() // which cannot fail
		for {
			select {
			case <-stop:
				return
			default:
			}
			err := ask(d)
			if err != nil && !errors.Is(err, fault.Unavailable) {
				t.Errorf("%v, want an answer or unavailable", err)
			}
			mu.Lock()
			if err == nil {
				answers++
			} else {
				refusals++
			}
			mu.Unlock()
			if anew {
				_ = d.Close() // as above
				d = libvirt.New(o)
			}
			<-time.After(2 * time.Millisecond)
		}
	}
	asking.Go(func() { hammer(false) })
	asking.Go(func() { hammer(true) })
	var longest time.Duration
	for i := range 6 {
		began := time.Now()
		switch i % 3 {
		case 0:
			restart(t, h)
		case 1:
			if err := h.StopLibvirtd(within(t, 2*time.Minute)); err != nil {
				t.Fatal(err)
			}
			if err := h.StartLibvirtd(within(t, 2*time.Minute)); err != nil {
				t.Fatal(err)
			}
		case 2:
			hang(t, h)()
		}
		for limit := time.Now().Add(recovery); ask(d) != nil; {
			if time.Now().After(limit) {
				t.Fatalf("not well %v after its daemon", recovery)
			}
			<-time.After(5 * time.Millisecond)
		}
		longest = max(longest, time.Since(began))
		mu.Lock()
		want := answers + 4
		mu.Unlock()
		for limit, n := time.Now().Add(recovery), 0; n < want; {
			if time.Now().After(limit) {
				t.Fatalf("the others are not answered %v after", recovery)
			}
			<-time.After(5 * time.Millisecond)
			mu.Lock()
			n = answers
			mu.Unlock()
		}
	}
	close(stop)
	asking.Wait()
	t.Logf("%d answers, %d times unavailable; the longest way back, with the daemon's own start: %v", answers, refusals, longest)
	if refusals == 0 {
		t.Error("nobody was refused: nothing was tried")
	}
}

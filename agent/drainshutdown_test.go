package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration/drain"
	"berth/systemd"
)

// goingMachine stands in for logind and for the drainer, and keeps what happens in order.
type goingMachine struct {
	mu     sync.Mutex
	log    []string
	going  chan systemd.Going
	down   bool
	refuse error
	again  error // of each lock but the first
	locks  int
	begins error
	views  chan drain.Drain
}

func (m *goingMachine) note(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log = append(m.log, what)
}

func (m *goingMachine) Delay(context.Context) (time.Duration, error) { return 5 * time.Second, nil }
func (m *goingMachine) Down(context.Context) (bool, error)           { return m.down, nil }
func (m *goingMachine) Going() <-chan systemd.Going                  { return m.going }
func (m *goingMachine) Close()                                       {}

func (m *goingMachine) Lock(context.Context) (func() error, error) {
	if m.refuse != nil {
		return nil, m.refuse
	}
	if m.locks++; m.locks > 1 && m.again != nil {
		m.note("no lock")
		return nil, m.again
	}
	m.note("lock")
	var once sync.Once
	return func() error { once.Do(func() { m.note("release") }); return nil }, nil
}

func (m *goingMachine) Begin(_ context.Context, r drain.Request) (drain.Drain, error) {
	m.note("drain by " + r.By)
	return drain.Drain{Request: r, State: drain.Running}, m.begins
}

func (m *goingMachine) Watch(context.Context, string) (<-chan drain.Drain, error) {
	return m.views, nil
}

func (m *goingMachine) CallOff(context.Context, string) error {
	m.note("call off")
	return nil
}

func TestShutdowns(t *testing.T) {
	over := drain.Drain{State: drain.Incomplete}
	for _, c := range []struct {
		name string
		off  bool // [drain] on_shutdown = false
		set  func(m *goingMachine)
		do   func(m *goingMachine)
		want []string
	}{
		{name: "it is not asked for", off: true},
		{name: "nothing happens", want: []string{"lock", "release"}},
		{name: "the machine goes down", do: func(m *goingMachine) {
			m.going <- systemd.Going{Down: true}
			synctest.Wait()
			m.note("…")
			m.views <- drain.Drain{State: drain.Running}
			m.views <- over
		}, want: []string{"lock", "drain by shutdown", "…", "release"}},
		{name: "a drain goes on already", set: func(m *goingMachine) { m.begins = fault.New(fault.Exists, "another") }, do: func(m *goingMachine) {
			m.going <- systemd.Going{Down: true}
			m.views <- over
		}, want: []string{"lock", "drain by shutdown", "release"}},
		{name: "the drain cannot begin", set: func(m *goingMachine) { m.begins = errors.New("no libvirt") }, do: func(m *goingMachine) {
			m.going <- systemd.Going{Down: true}
		}, want: []string{"lock", "drain by shutdown", "release"}},
		{name: "the agent is stopped meanwhile", do: func(m *goingMachine) {
			m.going <- systemd.Going{Down: true}
		}, want: []string{"lock", "drain by shutdown", "release"}},
		{name: "the shutdown is called off meanwhile", do: func(m *goingMachine) {
			m.going <- systemd.Going{Down: true}
			m.going <- systemd.Going{}
		}, want: []string{"lock", "drain by shutdown", "release", "call off", "lock", "release"}},
		{name: "the shutdown is called off, and no second lock is given", set: func(m *goingMachine) { m.again = errors.New("too many inhibitors") }, do: func(m *goingMachine) {
			m.going <- systemd.Going{Down: true}
			m.going <- systemd.Going{}
			synctest.Wait()
			time.Sleep(shutdownAgain + time.Second) // in the bubble's time
			m.note("called off again")
		}, want: []string{"lock", "drain by shutdown", "release", "call off", "no lock", "no lock", "called off again"}},
		{name: "the machine has slept", do: func(m *goingMachine) {
			m.going <- systemd.Going{Sleep: true, Down: true}
			m.views <- over
			synctest.Wait()
			m.going <- systemd.Going{Sleep: true}
		}, want: []string{"lock", "drain by shutdown", "release", "call off", "lock", "release"}},
		{name: "the agent starts on the way down", set: func(m *goingMachine) { m.down, m.refuse = true, errors.New("too late") }, do: func(m *goingMachine) {
			m.views <- over
		}, want: []string{"drain by shutdown"}},
		{name: "the bus ends", do: func(m *goingMachine) { close(m.going) }, want: []string{"lock", "release"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newShutdownAgent(!c.off)
				m := &goingMachine{going: make(chan systemd.Going), views: make(chan drain.Drain)}
				if c.set != nil {
					c.set(m)
				}
				s := &shutdowns{a: b, drains: m, dial: func(context.Context) (inhibitor, error) { return m, nil }}
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); _ = s.run(ctx) }()
				synctest.Wait()
				if c.do != nil {
					c.do(m)
				}
				synctest.Wait()
				stop()
				<-done
				if diff := cmp.Diff(c.want, m.log); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// newShutdownAgent is as much of an agent as a shutdown asks of it.
func newShutdownAgent(on bool) *Agent {
	c := config.Default()
	c.Agent.Mode, c.Drain.OnShutdown = config.Manage, on
	a := &Agent{opt: Options{Config: c}, log: slog.New(slog.DiscardHandler), rt: &runtime.System{}, name: "host-a"}
	a.conf.Store(&c)
	return a
}

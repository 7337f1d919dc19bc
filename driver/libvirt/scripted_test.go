package libvirt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const guestUUID = "8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11"

// daemon is a libvirtd of which tests decide every answer. Methods that no test
// scripts panic, by the nil interface in scripted.
type daemon struct {
	mu      sync.Mutex // guards what follows
	refuse  error      // of connecting
	conns   []*scripted
	answer  map[string]func(*scripted) error // by method; nil answers at once
	state   State
	job     int
	monitor string  // what Monitor answers
	refs    [][]Ref // what List(0) gives, one element a call, the last one again
	params  []Param
	flags   uint32

	downtime, speed, postCopySpeed uint64 // ms, and MiB a second
	bounds                         int    // how often one of them was set
}

func (d *daemon) dial(ctx context.Context, _ Target) (Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuse != nil {
		return nil, d.refuse
	}
	c := &scripted{d: d, done: make(chan struct{})}
	d.conns = append(d.conns, c)
	return c, ctx.Err()
}

func (d *daemon) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// count is how many connections were made, and how many of them are open.
func (d *daemon) count() (made, open int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.conns {
		select {
		case <-c.done:
		default:
			open++
		}
	}
	return len(d.conns), open
}

// lose ends every connection, as a daemon that dies does.
func (d *daemon) lose() {
	d.mu.Lock()
	conns := d.conns
	d.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

type scripted struct {
	Conn
	d         *daemon
	once      sync.Once
	done      chan struct{}
	subscribe func(Event)
	devices   func(DeviceEvent)
}

func (s *scripted) Done() <-chan struct{} { return s.done }
func (s *scripted) Close()                { s.once.Do(func() { close(s.done) }) }

// hang waits for the connection's end, as a call to a stopped daemon does.
func hang(s *scripted) error {
	<-s.done
	return ErrLost
}

func (s *scripted) call(name string) error {
	s.d.mu.Lock()
	f := s.d.answer[name]
	s.d.mu.Unlock()
	select {
	case <-s.done:
		return ErrNotSent
	default:
	}
	if f == nil {
		return nil
	}
	return f(s)
}

func (s *scripted) LibVersion() (uint64, error) { return 9000000, s.call("LibVersion") }
func (s *scripted) Subscribe(f func(Event)) error {
	s.subscribe = f
	return s.call("Subscribe")
}
func (s *scripted) SubscribeDevices(f func(DeviceEvent)) error {
	s.devices = f
	return s.call("SubscribeDevices")
}
func (s *scripted) LookupUUID(uuid string) (Ref, error) {
	s.d.mu.Lock()
	id := -1
	if s.d.state.State != 5 {
		id = 3
	}
	s.d.mu.Unlock()
	return Ref{UUID: uuid, Name: "g", ID: id}, s.call("LookupUUID")
}
func (s *scripted) State(string) (State, error) {
	err := s.call("State")
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return s.d.state, err
}
func (s *scripted) Info(uuid string) (Info, error) {
	return Info{MaxMemKiB: 1025, VCPUs: 2}, s.call("Info " + uuid)
}
func (s *scripted) IsPersistent(string) (bool, error) { return true, s.call("IsPersistent") }
func (s *scripted) Autostart(string) (bool, error)    { return false, s.call("Autostart") }
func (s *scripted) Create(string, uint32) error       { return s.call("Create") }
func (s *scripted) Suspend(string) error              { return s.call("Suspend") }
func (s *scripted) AbortJob(_ string, flags uint32) error {
	return s.call(map[uint32]string{0: "AbortJob", abortPostCopy: "AbortJob post-copy"}[flags])
}
func (s *scripted) Monitor(_, command string) (string, error) {
	err := s.call("Monitor " + command)
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return s.d.monitor, err
}
func (s *scripted) CompareCPU(CPU, uint32) error         { return s.call("CompareCPU") }
func (s *scripted) HasManagedSave(string) (bool, error)  { return false, s.call("HasManagedSave") }
func (s *scripted) Snapshots(string) ([]string, error)   { return nil, s.call("Snapshots") }
func (s *scripted) Checkpoints(string) ([]string, error) { return nil, s.call("Checkpoints") }
func (s *scripted) Undefine(_ string, flags uint32) error {
	s.d.set(func() { s.d.flags = flags })
	return s.call("Undefine")
}
func (s *scripted) SetMaxDowntime(_ string, ms uint64) error {
	return s.bound("SetMaxDowntime", func(d *daemon) { d.downtime = ms })
}
func (s *scripted) SetMaxSpeed(_ string, mib uint64, flags uint32) error {
	return s.bound("SetMaxSpeed", func(d *daemon) {
		if flags == 0 {
			d.speed = mib
		} else {
			d.postCopySpeed = mib
		}
	})
}
func (s *scripted) bound(call string, set func(*daemon)) error {
	err := s.call(call)
	if err == nil {
		s.d.set(func() { set(s.d); s.d.bounds++ })
	}
	return err
}
func (s *scripted) MaxDowntime(string) (uint64, error) {
	err := s.call("MaxDowntime")
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return s.d.downtime, err
}
func (s *scripted) MaxSpeed(string) (uint64, error) {
	err := s.call("MaxSpeed")
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return s.d.speed, err
}
func (s *scripted) JobStats(string, uint32) (int, map[string]any, error) {
	err := s.call("JobStats")
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return s.d.job, nil, err
}
func (s *scripted) Migrate(_, _ string, params []Param, flags uint32) error {
	s.d.set(func() { s.d.params, s.d.flags = params, flags })
	return s.call("Migrate")
}
func (s *scripted) List(flags uint32) ([]Ref, error) {
	err := s.call("List")
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if flags != 0 || len(s.d.refs) == 0 {
		return nil, err
	}
	refs := s.d.refs[0]
	if len(s.d.refs) > 1 {
		s.d.refs = s.d.refs[1:]
	}
	return refs, err
}
func (s *scripted) Stats(uint32, uint32) ([]Stats, error) {
	err := s.call("Stats")
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	var out []Stats
	if len(s.d.refs) > 0 {
		for _, r := range s.d.refs[0] { // what the list will give next time
			out = append(out, Stats{UUID: r.UUID, Values: map[string]any{"state.state": uint64(5)}})
		}
	}
	return out, err
}

// drive makes a driver on a scripted daemon. In a synctest bubble its time is
// the bubble's.
func drive(t *testing.T, d *daemon) *Driver {
	t.Helper()
	if d.answer == nil {
		d.answer = map[string]func(*scripted) error{}
	}
	if d.downtime == 0 {
		d.downtime, d.speed = usualDowntime, anySpeed
	}
	l := New(Options{Dial: d.dial, CallTimeout: time.Second, PingInterval: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func code(n int) error { return &Error{Code: n, Message: fmt.Sprintf("libvirt says %d", n)} }

var errDial = errors.New("connection refused")

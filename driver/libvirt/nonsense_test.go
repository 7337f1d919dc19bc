package libvirt

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"berth/internal/fault"
)

// lying answers what cannot be true.
type lying struct {
	*scripted
	uuid       string // of every domain that is looked up; empty for the truth
	stateless  bool   // Stats knows of no domain
	speechless bool   // Stats tells no state of the domains that it knows
}

func (l lying) LookupUUID(uuid string) (Ref, error) {
	if l.uuid != "" {
		uuid = l.uuid
	}
	return l.scripted.LookupUUID(uuid)
}

func (l lying) Stats(types, flags uint32) ([]Stats, error) {
	if l.stateless {
		return nil, nil
	}
	all, err := l.scripted.Stats(types, flags)
	for i := range all {
		if l.speechless {
			all[i].Values = nil
		}
	}
	return all, err
}

// What cannot be true is no knowledge: neither a domain that is off, nor one that
// is not there.
func TestReading_OfWhatCannotBeTrueIsUnavailable(t *testing.T) {
	const other = "11111111-2222-4333-8444-555555555555"
	for name, tt := range map[string]struct {
		state State
		lie   func(*scripted) Conn
		call  func(*Driver) error
		fine  bool
	}{
		"the truth":                   {State{1, 1}, func(s *scripted) Conn { return s }, readOne, true},
		"a state without a name":      {State{77, 0}, func(s *scripted) Conn { return s }, readOne, false},
		"a negative state":            {State{-1, 0}, func(s *scripted) Conn { return s }, readOne, false},
		"another domain":              {State{1, 1}, func(s *scripted) Conn { return lying{scripted: s, uuid: other} }, readOne, false},
		"a listed one with no state":  {State{5, 1}, func(s *scripted) Conn { return lying{scripted: s, stateless: true} }, listAll, false},
		"one whose state is left out": {State{5, 1}, func(s *scripted) Conn { return lying{scripted: s, speechless: true} }, listAll, false},
		"a list":                      {State{5, 1}, func(s *scripted) Conn { return s }, listAll, true},
	} {
		d := &daemon{state: tt.state, refs: [][]Ref{{{UUID: guestUUID, Name: "g", ID: -1}}}}
		l := New(Options{CallTimeout: time.Second, Logger: slog.New(slog.DiscardHandler), Dial: func(ctx context.Context, to Target) (Conn, error) {
			c, err := d.dial(ctx, to)
			if err != nil {
				return nil, err
			}
			return tt.lie(c.(*scripted)), nil
		}})
		if err := tt.call(l); (err == nil) != tt.fine || err != nil && !errors.Is(err, fault.Unavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

func readOne(d *Driver) error { _, err := d.Domain(context.Background(), guestUUID); return err }
func listAll(d *Driver) error { _, err := d.Domains(context.Background()); return err }

// A job of a type that nobody knows is not one that is over.
func TestJob_OfAnUnknownTypeIsUnavailable(t *testing.T) {
	for _, kind := range []int{-1, len(jobKinds)} {
		l := drive(t, &daemon{job: kind})
		if j, err := l.Job(withIn(t, time.Second), guestUUID); !errors.Is(err, fault.Unavailable) {
			t.Errorf("Job of type %d: %+v, %v, want unavailable", kind, j, err)
		}
		if j, err := l.CompletedJob(withIn(t, time.Second), guestUUID); !errors.Is(err, fault.Unavailable) {
			t.Errorf("CompletedJob of type %d: %+v, %v, want unavailable", kind, j, err)
		}
	}
}

// A count is the daemon's word; what is added up is there.
func TestStatistics_OfACountThatCannotBeTrueEnd(t *testing.T) {
	l := ability(t, able{stats: []Stats{{UUID: guestUUID, Values: map[string]any{
		"state.state": uint64(1), "block.count": uint64(1) << 62, "block.0.rd.bytes": uint64(7),
	}}}})
	got, err := l.Statistics(withIn(t, 5*time.Second))
	if err != nil || len(got) != 1 || got[0].DiskRead != 7 {
		t.Errorf("Statistics: %+v, %v, want the one disk that is there", got, err)
	}
}

// An order that was taken is not undone by a look that fails.
func TestAbortJob_ThatCannotBeLookedAtIsInDoubt(t *testing.T) {
	d := &daemon{answer: map[string]func(*scripted) error{"JobStats": func(*scripted) error { return ErrLost }}}
	l := drive(t, d)
	if err := l.AbortJob(withIn(t, time.Second), guestUUID); !errors.Is(err, fault.InDoubt) {
		t.Errorf("AbortJob: %v, want in doubt", err)
	}
}

package agent

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"berth/internal/fault"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/migration"
)

func TestSeals_CoverEveryFieldOfACommitAndOutliveItsJourney(t *testing.T) {
	dir := t.TempDir()
	ca, err := pki.Init(dir, "test", time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	of := func(name string) seals {
		t.Helper()
		at := filepath.Join(dir, name)
		if _, err := ca.IssueHost(at, name, nil, time.Now()); err != nil {
			t.Fatal(err)
		}
		id, err := pki.Load(pki.Paths{CA: filepath.Join(at, pki.CACertFile), Cert: filepath.Join(at, pki.HostCertFile), Key: filepath.Join(at, pki.HostKeyFile)}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return seals{id, &runtime.System{}}
	}
	source, destination, third := of("host-s"), of("host-d"), of("host-c")
	whole := migration.Commit{Instance: "i", Migration: "m", Attempt: 2, Epoch: 7, From: "host-s", To: "host-d", Power: migration.PowerRunning}
	sealed := func(by seals) migration.Commit {
		t.Helper()
		c := whole
		if c.Seal, err = by.Seal(whole); err != nil {
			t.Fatal(err)
		}
		// As it travels, and as a journal keeps it.
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		var out migration.Commit
		if err := json.Unmarshal(text, &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	good := sealed(source)
	if err := destination.Check(good); err != nil {
		t.Errorf("a good seal: %v", err)
	}
	// Each field is changed in turn: none may be outside of it.
	fields := reflect.TypeFor[migration.Commit]()
	for i := range fields.NumField() {
		if fields.Field(i).Name == "Seal" {
			continue
		}
		bad := good
		switch f := reflect.ValueOf(&bad).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString(f.String() + "x")
		case reflect.Int:
			f.SetInt(f.Int() + 1)
		case reflect.Uint64:
			f.SetUint(f.Uint() + 1)
		default:
			t.Fatalf("%s is a %s", fields.Field(i).Name, f.Kind())
		}
		if err := destination.Check(bad); !errors.Is(err, fault.Forbidden) {
			t.Errorf("another %s: %v, want it refused", fields.Field(i).Name, err)
		}
	}
	slid := good // the same letters, in other fields
	slid.Instance, slid.Migration = "", "im"
	for what, c := range map[string]migration.Commit{"letters that slid over": slid, "none": whole, "the conductor's own": sealed(third)} {
		if err := destination.Check(c); !errors.Is(err, fault.Forbidden) || len(fault.ReasonsOf(err)) != 1 {
			t.Errorf("%s: %v, want it refused with its reason", what, err)
		}
	}
	for days, want := range map[int]bool{5: true, 7: false} {
		late := seals{destination.identity, later{&runtime.System{}, time.Duration(days) * 24 * time.Hour}}
		// What a receiver has accepted, and seen go on, it forgets in the end.
		if err := late.Check(good); (err == nil) != want || err != nil && !errors.Is(err, fault.Forbidden) {
			t.Errorf("after %d days: %v, want it taken: %v", days, err, want)
		}
	}
	none := seals{nil, &runtime.System{}}
	if _, err := none.Seal(whole); !errors.Is(err, fault.Unavailable) {
		t.Errorf("sealed without a certificate: %v", err)
	}
	if err := none.Check(good); !errors.Is(err, fault.Unavailable) {
		t.Errorf("checked without a certificate: %v", err)
	}
}

// later is a clock that is ahead.
type later struct {
	runtime.Runtime
	by time.Duration
}

func (l later) Now() time.Time { return l.Runtime.Now().Add(l.by) }

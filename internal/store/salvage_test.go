package store

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"

	"berth/internal/fault"
)

func contentOf(s Salvaged) map[string]string {
	out := map[string]string{}
	for _, r := range s.Records {
		out[r.Bucket+"/"+r.Key] = string(r.Value)
	}
	return out
}

// What is saved of a damaged file is never another value than what was written, and
// it is called complete only where all of it is there.
func TestSalvage_SavesNothingThatWasNotWritten(t *testing.T) {
	data := sample(t)
	whole := salvage(data, current)
	want := contentOf(whole)
	if !whole.Complete() || len(want) != 60 || len(whole.Faults) > 0 {
		t.Fatalf("a sound file: %d records, %+v", len(want), whole.Faults)
	}
	random := rand.New(rand.NewPCG(3, 4))
	damages := 0
	saved := 0
	hold := func(what string, damaged []byte) {
		t.Helper()
		s := salvage(damaged, current)
		got := contentOf(s)
		for key, value := range got {
			if want[key] == value || s.Behind {
				continue // of the commit before, in which a record that was deleted since stands
			}
			t.Fatalf("%s: record %s is %q, want %q", what, key, value, want[key])
		}
		if s.Complete() && len(got) != len(want) {
			t.Fatalf("%s: complete with %d of %d records", what, len(got), len(want))
		}
		if !s.Behind && s.Lost >= 0 && s.Lost != len(want)-len(got) {
			t.Fatalf("%s: %d records lost, said %d", what, len(want)-len(got), s.Lost)
		}
		if len(got) < len(want) && len(s.Faults) == 0 && s.Lost <= 0 {
			t.Fatalf("%s: %d of %d records and no fault named: %+v", what, len(got), len(want), s)
		}
		damages++
		saved += len(got)
	}
	for at := 0; at < len(data); at += 13 * stride {
		flipped := bytes.Clone(data)
		flipped[at] ^= 1 << random.IntN(8)
		hold(fmt.Sprintf("bit of byte %d", at), flipped)
	}
	for n := 0; n <= len(data); n += 512 {
		hold(fmt.Sprintf("cut to %d", n), data[:n])
	}
	for page := 0; page < len(data); page += 4096 {
		for what, fill := range map[string]byte{"zeroed": 0, "filled": 0xff} {
			gone := bytes.Clone(data)
			copy(gone[page:], bytes.Repeat([]byte{fill}, 4096))
			hold(fmt.Sprintf("page %d %s", page/4096, what), gone)
		}
	}
	if saved < damages*len(want)/2 {
		t.Errorf("%d records saved in %d damages of a file of %d: too few", saved, damages, len(want))
	}
}

func TestSalvage_TakesNothingOfAnotherProgramOrANewerSchema(t *testing.T) {
	path := newPath(t)
	db := mustOpen(t, path)
	if err := errors.Join(db.Put(t.Context(), "claims", "a", []byte("1")), db.Close()); err != nil {
		t.Fatal(err)
	}
	for what, id := range map[string]identity{
		"another program": {application: "somebody", version: 1}, "a newer schema": {application: application, version: 9},
	} {
		b, err := bbolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = b.Update(func(tx *bbolt.Tx) error { return writeIdentity(tx, id) })
		if err := errors.Join(err, b.Close()); err != nil {
			t.Fatal(err)
		}
		s, err := Salvage(path)
		if err != nil || len(s.Records) > 0 || s.Complete() {
			t.Errorf("%s: %+v, %v; want no records", what, s, err)
		}
		_, err = Open(path, quiet())
		code := fault.ReasonsOf(err)[0].Code
		if want := map[string]string{"another program": CodeForeign, "a newer schema": CodeNewer}[what]; code != want || Lost(err) != (want == CodeForeign) {
			t.Errorf("%s: %v, code %s, want %s", what, err, code, want)
		}
	}
}

func TestSetAside_KeepsTheFileWhereverItIsStopped(t *testing.T) {
	records := []Record{{"claims", "a", []byte("1")}, {"agent", "rebuild", []byte("{}")}}
	at := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	errStop := errors.New("stopped")
	for _, stop := range []string{"kept", "made", "in place", ""} {
		t.Run("stopped when "+stop, func(t *testing.T) {
			path := newPath(t)
			if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := setAside(path, at, records, current, func(step string) error {
				if step == stop {
					return errStop
				}
				return nil
			})
			if stop != "" && !errors.Is(err, errStop) {
				t.Fatalf("%v, want it stopped", err)
			}
			if stop != "" && stop != "in place" {
				// As the next start finds it: still the damaged file.
				if _, err := Open(path, quiet()); !Lost(err) {
					t.Fatalf("between: %v, want the damage", err)
				}
				if _, err := SetAside(path, at.Add(time.Hour), records); err != nil {
					t.Fatal(err)
				}
			}
			got := map[string]string{}
			db := mustOpen(t, path)
			for _, bucket := range []string{"claims", "agent"} {
				for k, v := range list(t, db, bucket) {
					got[bucket+"/"+k] = v
				}
			}
			if diff := cmp.Diff(map[string]string{"claims/a": "1", "agent/rebuild": "{}"}, got); diff != "" {
				t.Errorf("records in its place (-want +got):\n%s", diff)
			}
			kept, err := Kept(path)
			if err != nil || len(kept) != 1 || filepath.Base(kept[0]) != "berth.db.damaged-20240506T070809Z" {
				t.Fatalf("kept %v, %v; want one, by its first date", kept, err)
			}
			if data, _ := os.ReadFile(kept[0]); string(data) != "damaged" {
				t.Errorf("kept %q", data)
			}
		})
	}
}

func TestSetAside_LeavesAFileThatIsInUse(t *testing.T) {
	path := newPath(t)
	mustOpen(t, path)
	if _, err := SetAside(path, time.Now(), nil); !errors.Is(err, fault.Busy) {
		t.Errorf("%v, want busy", err)
	}
	if kept, _ := Kept(path); len(kept) > 0 {
		t.Errorf("kept %v of a file in use", kept)
	}
}

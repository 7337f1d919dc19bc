package fleettest

import (
	"bytes"
	"fmt"
	"testing"

	"berth/fleet"
)

// TestFinder is what every store that looks for the records of one host must do.
func TestFinder(t *testing.T, open Open) {
	client := open(t)
	s, other := client(), client()
	find := func(prefix, host string) string {
		t.Helper()
		records, err := other.(fleet.Finder).ListOf(t.Context(), prefix, host)
		if err != nil {
			t.Fatalf("list %s of %q: %v", prefix, host, err)
		}
		for _, r := range records {
			if one := mustGet(t, s, r.Key); one.Revision != r.Revision || !bytes.Equal(one.Value, r.Value) {
				t.Errorf("record %s is another in the list", r.Key)
			}
		}
		return keys(records)
	}
	mustCommit(t, s, nil, put("i/1", `{"host":"a"}`), put("i/2", `{"host":"b"}`), put("i/3", "garbled"), put("i/4", `{"host":"a"}`), put("j/1", `{"host":"a"}`), put("i/2/x", "{}"))
	for host, want := range map[string]string{"a": "i/1 i/2/x i/3 i/4", "b": "i/2 i/2/x i/3", "c": "i/2/x i/3", "": "i/1 i/2 i/2/x i/3 i/4"} {
		if got := find("i/", host); got != want {
			t.Errorf("of host %q: %s, want %s", host, got, want)
		}
	}
	mustCommit(t, s, nil, put("i/1", `{"host":"b"}`), fleet.Change{Key: "i/4"}, put("i/0", `{"host":"a"}`))
	if got, want := find("i/", "a"), "i/0 i/2/x i/3"; got != want {
		t.Errorf("after one moved: %s, want %s", got, want)
	}
	// More than one answer holds.
	large := fmt.Sprintf(`{"host":"a","guest":"%s"}`, bytes.Repeat([]byte("x"), 300<<10))
	want := ""
	for i := range 12 {
		key := fmt.Sprintf("large/%02d", i)
		mustCommit(t, s, nil, put(key, large))
		want += key + " "
	}
	if got := find("large/", "a") + " "; got != want {
		t.Errorf("large records: %s, want %s", got, want)
	}
	if got := keys(mustList(t, s, "large/")) + " "; got != want {
		t.Errorf("all large records: %s, want %s", got, want)
	}
}

package fault

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestQuote_MakesOneWord(t *testing.T) {
	got := []string{Quote("/a/b-1.qcow2"), Quote("/a b"), Quote("/it's"), Quote("")}
	if diff := cmp.Diff([]string{"/a/b-1.qcow2", "'/a b'", `'/it'\''s'`, "''"}, got); diff != "" {
		t.Error(diff)
	}
}

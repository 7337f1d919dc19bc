package sim

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"time"
)

// trace is what happened, a line each: what a person reads of a run, and what two
// runs of one seed are compared by.
type trace struct{ text []byte }

// note adds a line. The parts are joined by spaces.
func (t *trace) note(at time.Duration, parts ...string) {
	t.text = strconv.AppendInt(t.text, int64(at/time.Microsecond), 10)
	for _, p := range parts {
		t.text = append(append(t.text, ' '), p...)
	}
	t.text = append(t.text, '\n')
}

func (t *trace) notef(at time.Duration, format string, args ...any) {
	t.note(at, fmt.Sprintf(format, args...))
}

func (t *trace) sum() [sha256.Size]byte { return sha256.Sum256(t.text) }

package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/agent/api"
	"berth/internal/config"
	"berth/internal/runtime"
)

// A filesystem that does not answer is told of, again and again, and has one look stuck on it.
func TestLooks_OneThatIsStuckIsNotBegunAgain(t *testing.T) {
	t.Parallel()
	l := &looks{rt: new(runtime.System), patience: 20 * time.Millisecond}
	back := make(chan struct{})
	var begun atomic.Int32
	stuck := func() (int, error) {
		begun.Add(1)
		<-back
		return 7, nil
	}
	if _, err := lookAt(t.Context(), l, "x", stuck); !errors.Is(err, errNoAnswer) || !strings.Contains(err.Error(), "within 20ms") {
		t.Errorf("the first: %v", err)
	}
	l.patience = time.Hour // whoever comes later does not wait for it
	for range 3 {
		if _, err := lookAt(t.Context(), l, "x", stuck); !errors.Is(err, errNoAnswer) || !strings.Contains(err.Error(), "since") {
			t.Errorf("one after it: %v", err)
		}
	}
	if got, err := lookAt(t.Context(), l, "y", func() (string, error) { return "z", nil }); got != "z" || err != nil {
		t.Errorf("another: %q, %v", got, err)
	}
	close(back)
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		got, err := lookAt(t.Context(), l, "x", stuck)
		if got == 7 && err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("when it has come back: %d, %v", got, err)
		}
	}
	if n := begun.Load(); n > 2 {
		t.Errorf("%d looks were begun, and one was stuck", n)
	}
}

func TestLooks_WhoAsksMeanwhileGetsTheSame(t *testing.T) {
	t.Parallel()
	l := &looks{rt: new(runtime.System), patience: time.Hour}
	back := make(chan struct{})
	f := func() (int, error) { <-back; return 7, nil }
	first, _ := begin(l, "x", f)
	if same, late := begin(l, "x", f); same != first || late {
		t.Errorf("the second is another, late %v", late)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lookAt(gone, l, "x", f); !errors.Is(err, context.Canceled) {
		t.Errorf("who has gone: %v", err)
	}
	close(back)
	if got, err := lookAt(t.Context(), l, "x", f); got != 7 || err != nil {
		t.Errorf("%d, %v", got, err)
	}
}

// TestDoctor_AFolderThatDoesNotAnswerIsToldOf has a pipe that nobody writes to: to open it waits in
// the kernel as a dead filesystem has one wait.
func TestDoctor_AFolderThatDoesNotAnswerIsToldOf(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "dead")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	conf := config.Default()
	conf.Agent.HooksDir = t.TempDir()
	o := optionsOf(conf)
	o.FenceHooks = func() ([]string, error) {
		_, err := os.ReadFile(pipe)
		return nil, err
	}
	d := New(o)
	d.looks.patience = 20 * time.Millisecond
	d.host = func(context.Context) []api.Check { return nil }
	for _, says := range []string{"does not answer within 20ms", "does not answer since"} {
		got, err := d.Examine(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(got.Checks, func(c api.Check) bool { return c.Name == "fence hook" })
		if c := got.Checks[i]; c.Outcome != api.CheckWrong || !strings.Contains(c.Detail, says) || !strings.Contains(c.Remedy, conf.Agent.HooksDir) {
			t.Errorf("%+v, want %q", c, says)
		}
	}
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // lets the reader go
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
}

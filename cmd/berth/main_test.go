package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"berth/agent/api"
	"berth/internal/fault"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"berth": main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			// Nothing of the machine's own is asked: no agent, no configuration.
			e.Setenv("BERTH_CONNECT", "")
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exit":        exitCode,
			"expand":      expand,
			"await-agent": awaitAgent,
			"ledger":      writeLedger,
			"cut":         cutFile,
		},
	})
}

// expand replaces $WORK in a file.
func expand(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[0])
	text := strings.ReplaceAll(ts.ReadFile(args[0]), "$WORK", ts.Getenv("WORK"))
	ts.Check(os.WriteFile(path, []byte(text), 0o644))
}

// awaitAgent waits until an agent answers on its socket that it is ready.
func awaitAgent(ts *testscript.TestScript, _ bool, args []string) {
	c, err := api.NewClient(api.ClientOptions{Socket: ts.MkAbs(args[0])})
	ts.Check(err)
	defer c.Close()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var s api.Status
		if s, err = c.Status(context.Background()); err == nil && s.Ready {
			return
		}
	}
	ts.Fatalf("no agent is ready on %s: %v", args[0], err)
}

// exitCode runs a command and wants its exit code: exit 3 berth migrate …
func exitCode(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	if err != nil {
		var code interface{ ExitCode() int }
		if !errors.As(err, &code) {
			ts.Fatalf("%v", err)
		}
		got = code.ExitCode()
	}
	if fmt.Sprint(got) != args[0] {
		ts.Fatalf("exit code %d, want %s", got, args[0])
	}
}

func TestCodeOf_EveryKind(t *testing.T) {
	for kind, want := range map[fault.Kind]int{
		fault.Internal: 1, fault.Invalid: 2, fault.DoesNotFit: 3, fault.Forbidden: 3, fault.NotFound: 4, fault.Busy: 5, fault.Exists: 5,
		fault.GenerationConflict: 5, fault.Unavailable: 6, fault.Undone: 8, fault.InDoubt: 9,
	} {
		if got := codeOf(fmt.Errorf("outer: %w", fault.New(kind, "inner"))); got != want {
			t.Errorf("%s exits with %d, want %d", kind, got, want)
		}
	}
	if codeOf(nil) != 0 || codeOf(errDegraded) != 7 || codeOf(errors.New("plain")) != 1 {
		t.Error("nil, degraded or a plain error exits wrongly")
	}
}

func TestEveryCommand_HasHelp(t *testing.T) {
	var walk func(path []string)
	walk = func(path []string) {
		var out, errs bytes.Buffer
		if code := execute(context.Background(), linked(), append(path, "--help"), strings.NewReader(""), &out, &errs); code != 0 {
			t.Errorf("berth %s --help exits with %d: %s", strings.Join(path, " "), code, &errs)
		}
		a := &app{parts: linked()}
		c, _, err := a.root().Find(path)
		if err != nil {
			t.Fatal(err)
		}
		if c.Short == "" {
			t.Errorf("berth %s says nothing about itself", strings.Join(path, " "))
		}
		for _, sub := range c.Commands() {
			if !sub.Hidden && sub.Name() != "help" {
				walk(append(path[:len(path):len(path)], sub.Name()))
			}
		}
	}
	walk(nil)
}

func TestPrintError_SaysEachReasonAndWhatToDo(t *testing.T) {
	err := fmt.Errorf("migrate web-1 to host-b: %w", fault.Refuse(fault.DoesNotFit, "claim on host-b",
		fault.Reason{Code: "memory_short", Message: "memory: want 4096 MiB, 1024 MiB free", Change: "free 3072 MiB on host-b"},
		fault.Reason{Code: "vcpu_short", Message: "vcpus: want 4, 1 free"}))
	var text bytes.Buffer
	printError(&text, err, false)
	want := `berth: migrate web-1 to host-b: claim on host-b (does not fit)
  - memory: want 4096 MiB, 1024 MiB free
      to do:   free 3072 MiB on host-b
  - vcpus: want 4, 1 free
`
	if text.String() != want {
		t.Errorf("printed:\n%swant:\n%s", &text, want)
	}
}

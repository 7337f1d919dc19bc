package main

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"berth/internal/fault"
	"berth/internal/screen"
)

func TestNext_SaysWhatToTypeWhereNothingElseDoes(t *testing.T) {
	t.Parallel()
	told := fault.Refuse(fault.NotFound, "show", fault.Reason{Code: "x", Message: "x", Change: "berth instance list, with -c for other hosts"})
	untold := fault.Refuse(fault.NotFound, "show", fault.Reason{Code: "x", Message: "x", Change: "look elsewhere"})
	absent := fault.Refuse(fault.Unavailable, "ask", fault.Reason{Code: "unreachable", Message: "no agent listens on /run/berth/berth.sock", Change: "start it (systemctl start berth)"})
	for _, tt := range []struct {
		command string
		err     error
		want    string // in what is said; empty for nothing
	}{
		{"berth claim show", fault.New(fault.NotFound, "no claim"), "berth claim list"},
		{"berth claim show", untold, "berth claim list"},
		{"berth claim show", told, ""},
		{"berth migrate", fault.New(fault.DoesNotFit, "full"), "berth plan GUEST"},
		{"berth migrate", fault.New(fault.Forbidden, "no"), ""},
		{"berth migration list", fault.New(fault.InDoubt, "?"), "berth migration show"},
		{"berth audit", fault.New(fault.InDoubt, "?"), "berth status"},
		{"berth host drain", errors.New("a bug"), "berth debug bundle"},
		{"berth status", absent, "berth config check"},
		{"berth host topology", absent, "berth host discover reads the hardware without it"},
	} {
		got := next(tt.command, tt.err)
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("after %s, %v: %q, want %q in it", tt.command, tt.err, got, tt.want)
		}
	}
}

// TestNext_NamesCommandsThatAre fails when a command is renamed that people are sent to, or
// from whose errors they are.
func TestNext_NamesCommandsThatAre(t *testing.T) {
	t.Parallel()
	root := (&app{}).root()
	find := func(words []string) *cobra.Command {
		cmd, _, err := root.Find(words)
		if err != nil || cmd == root {
			return nil
		}
		return cmd
	}
	for _, row := range nextTable {
		for _, c := range row.commands {
			if c != "" && find(strings.Fields(c)) == nil {
				t.Errorf("no command %q", c)
			}
		}
		for _, part := range strings.Split(row.say, "berth ")[1:] {
			words := strings.Fields(strings.NewReplacer(";", "", ",", "").Replace(part))
			n := min(2, len(words))
			if cmd := find(words[:n]); cmd == nil || cmd.HasSubCommands() && !slices.Contains([]string{"status", "doctor", "plan"}, words[0]) {
				t.Errorf("%q sends people to %q", row.say, strings.Join(words[:n], " "))
			}
		}
	}
}

func TestColoured_OnlyWhereSomebodyWatches(t *testing.T) {
	t.Parallel()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 133}); err != nil {
		t.Fatal(err)
	}
	read, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	defer pipe.Close()
	for _, tt := range []struct {
		name string
		to   *os.File
		env  map[string]string
		want bool
	}{
		{"a terminal", terminal, nil, true},
		{"NO_COLOR", terminal, map[string]string{"NO_COLOR": "1"}, false},
		{"a terminal that knows none", terminal, map[string]string{"TERM": "dumb"}, false},
		{"a pipe", pipe, nil, false},
	} {
		if got := screen.Coloured(tt.to, func(k string) string { return tt.env[k] }); got != tt.want {
			t.Errorf("%s: coloured %v", tt.name, got)
		}
	}
	for want, env := range map[bool]map[string]string{true: {"LANG": "en_GB.UTF-8"}, false: {"LANG": "en_GB.UTF-8", "LC_ALL": "C"}} {
		if got := screen.KnowsUTF8(func(k string) string { return env[k] }); got != want {
			t.Errorf("%v knows UTF-8: %v", env, got)
		}
	}
	if n := screen.Columns(terminal); n != 133 {
		t.Errorf("a terminal of 133 columns has %d", n)
	}
}

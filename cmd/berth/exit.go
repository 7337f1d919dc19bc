package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"berth/agent/api"
	"berth/agent/guard"
	"berth/internal/fault"
)

// Exit codes, as documented in `berth help exit-codes`.
const (
	exitOK          = 0
	exitInternal    = 1
	exitUsage       = 2
	exitRefused     = 3
	exitNotFound    = 4
	exitConflict    = 5
	exitUnavailable = 6
	exitDegraded    = 7
	exitUndone      = 8
	exitInDoubt     = 9
)

// errDegraded ends a command that answered, and whose answer is that not all is
// well. Nothing more is printed.
var errDegraded = errors.New("degraded")

// codeOf is the one place where errors become exit codes.
func codeOf(err error) int {
	if err == nil {
		return exitOK
	}
	if errors.Is(err, errDegraded) {
		return exitDegraded
	}
	if errors.Is(err, errGuardRefused) {
		return guard.ExitRefuse
	}
	if errors.Is(err, errNowhere) {
		return exitRefused
	}
	if errors.Is(err, errLeftBehind) {
		return exitUndone
	}
	switch fault.KindOf(err) {
	case fault.Invalid:
		return exitUsage
	case fault.DoesNotFit, fault.Forbidden:
		return exitRefused
	case fault.NotFound:
		return exitNotFound
	case fault.Busy, fault.Exists, fault.GenerationConflict:
		return exitConflict
	case fault.Unavailable:
		return exitUnavailable
	case fault.Undone:
		return exitUndone
	case fault.InDoubt:
		return exitInDoubt
	}
	return exitInternal
}

const exitCodesHelp = `Exit codes of every command:

  0  done
  1  internal error: a bug or a broken disk
  2  usage: the command line or the configuration is wrong
  3  refused: it does not fit, or is not allowed; the reasons say what to change
  4  not found
  5  busy, exists already, or somebody else was faster
  6  unavailable: the agent, a peer, libvirt or Placement does not answer
  7  answered, and not all is well (status, audit, doctor, host drain --plan)
  8  the move failed, and everything was put back; a drain has left guests behind
  9  in doubt, or still going on
`

// silent are errors of commands that have answered: nothing more is printed.
func silent(err error) bool {
	return errors.Is(err, errDegraded) || errors.Is(err, errNowhere) || errors.Is(err, errLeftBehind) || errors.Is(err, errGuardRefused)
}

// printError says what went wrong: what was being done, then each reason with
// what would have to change; as the API's error body where JSON is asked for.
func printError(w io.Writer, err error, asJSON bool) {
	if silent(err) {
		return
	}
	body := api.BodyOf(err)
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		_ = enc.Encode(body) // standard error is all there is to tell it to
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "berth: %s", body.Error.Message)
	usage := usageLines(body.Error.Reasons)
	if len(body.Error.Reasons) == 0 || usage != nil {
		b.WriteByte('\n')
	} else {
		fmt.Fprintf(&b, " (%s)\n", body.Error.Kind.Error())
	}
	for _, line := range usage {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	for _, r := range body.Error.Reasons {
		if usage != nil {
			break
		}
		fmt.Fprintf(&b, "  - %s\n", r.Message)
		if r.Cell != nil {
			fmt.Fprintf(&b, "      cell:    %d\n", *r.Cell)
		}
		if r.Want != "" && r.Have != "" && !strings.Contains(r.Message, r.Have) {
			fmt.Fprintf(&b, "      have:    %s, want %s\n", r.Have, r.Want)
		}
		if r.Change != "" {
			fmt.Fprintf(&b, "      to do:   %s\n", r.Change)
		}
	}
	fmt.Fprint(w, b.String())
}

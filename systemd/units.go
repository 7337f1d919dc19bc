package systemd

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Units asks the service manager that runs this machine, by its own tools: what D-Bus
// would need of a library they have, and whoever looks into the journal knows the words.
// The zero value is ready.
type Units struct {
	// Systemctl and SystemdRun are the tools; empty takes those in PATH.
	Systemctl, SystemdRun string
}

// Running says whether systemd is this machine's service manager (sd_booted(3)).
func Running() bool {
	fi, err := os.Lstat("/run/systemd/system")
	return err == nil && fi.IsDir()
}

// Has says whether the manager knows a unit; of a template, whether its file is
// there.
func (u Units) Has(ctx context.Context, unit string) bool {
	return u.run(ctx, "cat", unit) == nil
}

// Start starts a unit and returns when the manager says that it has started, which
// for Type=notify is when it serves. A unit of that name that failed before does
// not stand in the way. Blocks within ctx.
func (u Units) Start(ctx context.Context, unit string) error {
	// Of a unit that never failed this fails, and nothing is lost.
	_ = u.run(ctx, "reset-failed", unit)
	return u.run(ctx, "start", unit)
}

func (u Units) run(ctx context.Context, verb, unit string) error {
	_, err := u.ask(ctx, verb, "--", unit)
	return err
}

// ask calls systemctl and gives what it says; what it says of a failure is the error.
func (u Units) ask(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, cmp.Or(u.Systemctl, "systemctl"), append([]string{"--no-ask-password", "--quiet"}, args...)...)
	// A tool that hangs with its output open is not waited for.
	cmd.WaitDelay = time.Second
	var said, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &complaint
	if err := cmd.Run(); err != nil {
		words := oneLine(said.String() + " " + complaint.String())
		return "", fmt.Errorf("systemctl %s: %w: %.300s", strings.Join(slices.DeleteFunc(args, func(a string) bool { return a == "--" }), " "), err, words)
	}
	return strings.TrimSpace(said.String()), nil
}

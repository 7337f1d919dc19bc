package systemd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// Units starts units of the service manager that runs this machine, by its own
// tool, systemctl: what D-Bus would need of a library it has, and whoever looks
// into the journal knows the words.
type Units struct {
	// Systemctl is the tool; empty takes the one in PATH.
	Systemctl string
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
	tool := u.Systemctl
	if tool == "" {
		tool = "systemctl"
	}
	cmd := exec.CommandContext(ctx, tool, "--no-ask-password", "--quiet", verb, "--", unit)
	// A tool that hangs with its output open is not waited for.
	cmd.WaitDelay = time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("systemctl %s %s: %w: %.300s", verb, unit, err, oneLine(said.String()))
	}
	return nil
}

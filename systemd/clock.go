package systemd

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// ClockKept asks timedated (org.freedesktop.timedate1(5)) whether a daemon keeps this machine's
// clock: it may ask the kernel, which a service with ProtectClock may not. Blocks within ctx.
func ClockKept(ctx context.Context) (bool, error) {
	cmd := exec.CommandContext(ctx, "timedatectl", "show", "--property=NTPSynchronized", "--value")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	said := strings.TrimSpace(string(out))
	if err != nil {
		return false, fmt.Errorf("ask timedated: %w: %.300s", err, oneLine(said))
	}
	switch said {
	case "yes":
		return true, nil
	case "no":
		return false, nil
	}
	return false, fmt.Errorf("ask timedated: it answered %.100q", said)
}

package systemd

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"

	"berth/internal/runtime"
)

// Notifier tells the service manager how the agent is. The zero value is ready.
// Errors are returned but seldom matter: a manager that does not listen is told
// again by the next state.
type Notifier struct{}

// Ready says that the agent serves; status is the line that systemctl shows.
func (Notifier) Ready(status string) error {
	return send(daemon.SdNotifyReady + "\nSTATUS=" + oneLine(status))
}

// Status replaces the line that systemctl shows.
func (Notifier) Status(status string) error { return send("STATUS=" + oneLine(status)) }

// Reloading says that the configuration is being read again; Ready ends it.
// The time stamp is what Type=notify-reload orders it by.
func (Notifier) Reloading() error {
	return send(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
}

// Stopping says that the agent goes down by itself.
func (Notifier) Stopping() error { return send(daemon.SdNotifyStopping) }

func send(state string) error {
	if _, err := daemon.SdNotify(false, state); err != nil {
		return fmt.Errorf("tell systemd %.40q: %w", state, err)
	}
	return nil
}

// oneLine keeps a status from being read as further assignments.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// Watchdog tells the manager twice in each of its periods that the agent lives,
// as long as alive says so, until ctx ends. After a no it asks again soon, so that
// only what stands until the period is over costs the agent. alive must be about the progress of
// the agent's loops: a timer that always fires proves nothing. Without a
// watchdog in the unit it returns when ctx ends.
func (Notifier) Watchdog(ctx context.Context, rt runtime.Runtime, alive func() bool) error {
	period, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("read the watchdog's period: %w", err)
	}
	if period <= 0 {
		<-ctx.Done()
		return nil
	}
	for {
		pause := period / 2
		if alive() {
			// A datagram that was not taken is made good by the next one.
			_ = send(daemon.SdNotifyWatchdog)
		} else {
			pause = min(pause, askAgain)
		}
		if rt.Sleep(ctx, max(pause, time.Millisecond)) != nil {
			return nil
		}
	}
}

// askAgain is how soon an agent that stood is asked anew. Arbitrary: far below any period.
const askAgain = time.Second

// Listeners gives the sockets that the manager holds for the agent, by their
// FileDescriptorName; none without socket activation. It can be asked once: it
// takes the descriptors out of the environment, so that no child inherits them.
func Listeners() (map[string][]net.Listener, error) {
	l, err := activation.ListenersWithNames()
	if err != nil {
		return nil, fmt.Errorf("take sockets from systemd: %w", err)
	}
	return l, nil
}

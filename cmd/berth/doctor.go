package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/internal/screen"
)

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Does each thing work that this host needs; what to do about what does not", Args: cobra.NoArgs,
		Long: `Look at each thing that has to work for guests to run and to move here: the kernel and
KVM, libvirt and QEMU, the guard's hook, AppArmor or SELinux, huge pages, the IOMMU,
userfaultfd (for post-copy), clocks, the system's bus, disk space, Placement, this host's
certificate, and with each other host whether the two believe each other.

Then on the day on which this host dies or is shut down: whether the store of the fleet's
records answers, its lease, the watchdog that is armed by it, the fencing hook, and whether
systemd-logind waits as long as a drain takes (InhibitDelayMaxSec in logind.conf).

Each comes with what was found, and what is wrong with what to do about it. Changes nothing.
Exits with 7 when something is wrong. What is not used is not wrong.`,
		Example: "  berth doctor\n  berth doctor --json | jq '.checks[] | select(.outcome == \"wrong\")'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, doctorTime, func(ctx context.Context, c *api.Client) error {
				d, err := c.Examine(ctx)
				if err != nil {
					return err
				}
				if err := a.print(d, func(w io.Writer) { doctorTable(w, d, screen.StyleOf(a.out)) }); err != nil {
					return err
				}
				if d.Health != api.HealthOK {
					return errDegraded
				}
				return nil
			})
		},
	}
}

// doctorTime is for checks that wait for who does not answer. Arbitrary.
const doctorTime = 2 * time.Minute

// doctorTable prints what is wrong first, then what is not used, then what is fine.
func doctorTable(w io.Writer, d api.Diagnosis, look screen.Style) {
	wrong := 0
	for _, c := range d.Checks {
		if c.Outcome == api.CheckWrong {
			wrong++
		}
	}
	head, colour := "NO ERRORS", screen.Good
	switch {
	case wrong == 1:
		head, colour = "1 ERROR", screen.Bad
	case wrong > 1:
		head, colour = fmt.Sprintf("%d ERRORS", wrong), screen.Bad
	}
	fmt.Fprintf(w, "%s: %s\n", d.Host, look.Paint(colour, head))
	for _, part := range []struct {
		outcome              api.CheckOutcome
		heading, colour, say string
	}{{api.CheckWrong, "ERROR", screen.Bad, "to do: "}, {api.CheckUnset, "NOT USED", screen.Hint, "to use it: "}, {api.CheckOK, "OK", screen.Good, ""}} {
		begun := false
		for _, c := range d.Checks {
			if c.Outcome != part.outcome {
				continue
			}
			if !begun {
				fmt.Fprintln(w)
				look.Heading(w, part.colour, part.heading)
				begun = true
			}
			words := []string{strings.TrimPrefix(c.Detail, c.Name+" ")} // the name stands beside it
			if c.Remedy != "" {
				words = append(words, part.say+c.Remedy)
			}
			look.Item(w, c.Name, words...)
		}
	}
}

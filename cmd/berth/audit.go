package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/agent/audit"
	"berth/internal/fault"
	"berth/internal/screen"
)

// auditTime bounds an audit of a fleet; an agent's own bound of one host is below it.
const auditTime = 9 * time.Minute

func (a *app) auditCommand() *cobra.Command {
	var r api.AuditRequest
	c := &cobra.Command{
		Use:   "audit",
		Short: "Hold Placement against the ledger and libvirt, and heal what is provable",
		Long: `Compare what three parties say of the guests of this host: the ledger (who owns,
what is claimed), libvirt (what runs), and Placement (what is counted), on all
providers of the host and for all resource classes. Every disagreement is named, with
what is provable and what to type next.

The verdicts:

  ledger only      the ledger has it, and libvirt or Placement does not
  libvirt only     it runs, and nobody manages it (UNMANAGED where nobody counts it
                   either), or nothing is claimed for it
  Placement only   it holds resources of this host, and nobody here has it
  differs          counted otherwise than claimed
  unknown          Placement or libvirt did not answer: nothing is judged

With --heal, what is provable is written: an allocation that is missing, of other
amounts or on another provider is made equal to the claim; the consumer of a move that
is over goes; of a guest counted on two hosts the part goes whose host has answered
that it does not have it. What a running guest uses is never freed, what moves is left
to its conductor, and a consumer that nobody knows is named and left. The agent does
the same by itself at its start and every [placement] audit_interval; what concerns
another host it leaves for some minutes, since a move by other hands may be about to
begin.

With --rebuild-placement, for an embedded Placement that has lost its database, every
host first reports its providers, and then puts back what its guests and its
unfinished moves hold. It changes nothing that agrees, and the agents come to the same
by themselves within an interval.

Exits with 7 when disagreements are left, else with 6 when somebody could not be
asked, else with 0: what is known to be wrong goes before what is not known. Guests
that run unmanaged are named, and are no disagreement: adopting them is up to you
(berth instance adopt).`,
		Example: "  berth audit\n  berth audit --heal\n  berth audit --all --heal\n  berth audit --all --json | jq '.hosts[].rows[]'\n  berth audit --rebuild-placement",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, auditTime, func(ctx context.Context, c *api.Client) error {
				r.All = r.All || r.RebuildPlacement
				report, err := c.Audit(ctx, r)
				if err != nil {
					return err
				}
				if err := a.print(report, func(w io.Writer) { auditTable(w, report, r.Heal || r.RebuildPlacement) }); err != nil {
					return err
				}
				return auditEnd(report)
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&r.Heal, "heal", false, "write what is provable")
	f.BoolVar(&r.All, "all", false, "every host that Placement or [peers] knows; asks all of them for consumers that none of them knows")
	f.BoolVar(&r.RebuildPlacement, "rebuild-placement", false, "every host reports its providers, then heals, as with --all --heal: for a Placement that lost its database")
	return c
}

// auditEnd is what an audit exits with.
func auditEnd(r api.AuditReport) error {
	var reasons []fault.Reason
	silent := func(who, why, change string) {
		reasons = append(reasons, fault.Reason{Code: "not_asked", Message: who + ": " + why, Change: change})
	}
	for _, h := range r.Hosts {
		ledger := h.Ledger != nil && len(h.Ledger.Differences)+len(h.Ledger.Lost) > 0
		n := countLeft(h)
		if ledger || n.wrong > 0 {
			return errDegraded
		}
		for _, who := range slices.Sorted(maps.Keys(h.Silent)) {
			silent("host "+h.Host+", asking "+who, h.Silent[who], "berth status -c "+h.Host)
		}
		if len(h.Silent) == 0 && n.unknown > 0 {
			silent("host "+h.Host, "not everything could be judged", "berth status -c "+h.Host)
		}
	}
	for _, host := range slices.Sorted(maps.Keys(r.Silent)) {
		silent("host "+host, r.Silent[host], "start its agent")
	}
	if len(reasons) == 0 {
		return nil
	}
	return fault.Refuse(fault.Unavailable, "not everybody could be asked", reasons...)
}

// left is how many rows of a host are left, by what they mean for an operator.
type left struct{ wrong, unmanaged, unknown int }

func countLeft(h api.AuditHost) left {
	var n left
	for _, one := range h.Left() {
		switch {
		case one.Verdict == audit.Unknown:
			n.unknown++
		case one.Unmanaged():
			n.unmanaged++
		default:
			n.wrong++
		}
	}
	return n
}

// auditTable prints a line for each host, and below it what disagrees, with what is
// to be done.
func auditTable(w io.Writer, r api.AuditReport, healing bool) {
	screen.Row(w, "HOST", "AGREE", "HEALED", "LEFT", "UNMANAGED", "UNKNOWN", "TOOK", "READS", "WRITES")
	for _, h := range r.Hosts {
		n := countLeft(h)
		screen.Row(w, h.Host, h.Verdicts[audit.Agree], h.Healed, n.wrong, n.unmanaged, n.unknown, rough(h.Took), h.Calls.Reads, h.Calls.Writes)
	}
	for _, h := range r.Hosts {
		auditRows(w, h, healing)
	}
	for _, host := range slices.Sorted(maps.Keys(r.Silent)) {
		fmt.Fprintln(w)
		say(w, "", "host "+host+" was not audited: "+r.Silent[host])
	}
}

// auditRows prints what disagrees on one host; what could not be judged is one line.
func auditRows(w io.Writer, h api.AuditHost, healing bool) {
	for _, who := range slices.Sorted(maps.Keys(h.Silent)) {
		fmt.Fprintln(w)
		say(w, "", h.Host+" could not ask "+who+": "+h.Silent[who])
	}
	if h.Refused != "" {
		fmt.Fprintln(w)
		say(w, "", h.Host+" heals nothing: "+h.Refused)
	}
	if h.Ledger != nil && len(h.Ledger.Differences)+len(h.Ledger.Lost) > 0 {
		fmt.Fprintln(w)
		say(w, "", fmt.Sprintf("the ledger of %s does not agree with itself or the machine: sums that differ %d, held and gone from the host %d",
			h.Host, len(h.Ledger.Differences), len(h.Ledger.Lost)))
		say(w, deeper, "to do: berth status -c "+h.Host+", part claims")
	}
	first := true
	for _, one := range h.Rows {
		if one.Verdict == audit.Unknown {
			continue
		}
		if first {
			fmt.Fprintf(w, "\non %s:\n", h.Host)
			first = false
		}
		since := ""
		if s := time.Since(one.Since); !one.Since.IsZero() && s > time.Second {
			since = " (for " + rough(s) + ")"
		}
		say(w, "  ", string(one.Verdict)+": "+one.Message+since)
		switch {
		case one.Healed:
			say(w, deeper, "healed")
			continue
		case one.Failed != "":
			say(w, deeper, "not healed: "+one.Failed)
		case one.Heal != audit.HealNone && !healing:
			say(w, deeper, "provable")
		case one.Quarantine != "":
			say(w, deeper, "left alone: "+one.Quarantine)
		}
		if one.Change != "" && (!healing || one.Heal == audit.HealNone || one.Failed != "") {
			say(w, deeper, "to do: "+one.Change)
		}
	}
}

const (
	auditColumns = 80 // what an audit says below its table is no wider, where words allow
	deeper       = "      "
)

// say prints a text below the table, on as many lines as the screen wants; those after
// the first stand two columns deeper.
func say(w io.Writer, indent, text string) {
	for i, line := range screen.Fold(text, auditColumns-len(indent)-2) {
		if i > 0 {
			line = "  " + line
		}
		fmt.Fprintf(w, "%s%s\n", indent, line)
	}
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/screen"
)

// proofHelp says what counts as a proof, for each command that wants one.
const proofHelp = `A host counts as dead by one of these, which is kept with who has said it and why:

  fenced      berth host fence HOST: the hooks of phase fence have switched it off
  operator    berth host declare-dead HOST --reason TEXT: you have checked that it is off
  self_fence  its lease in etcd is over, and its watchdog ([fleet] self_fence) has reset it

That it does not answer, and that its lease is over, proves nothing: it may only be cut
off, and its guests run. Its death stands until it comes back: then it first gives up
what is no longer its own, before it starts anything.`

func (a *app) hostFence() *cobra.Command {
	var sure bool
	cmd := &cobra.Command{
		Use: "fence HOST", Short: "Switch a host off by the fencing hooks, so that its guests can be evacuated", Args: cobra.ExactArgs(1),
		Long: `Have the fencing hooks switch a host off. They are the executables
/etc/berth/hooks.d/fence/NN-name on the host that is asked; each gets the other host's
name on its standard input and exits with 0 when that is off for certain, and not
merely told to be. When all have, the host counts as dead. A hook that fails leaves
everything as it was.

A host that still answers is switched off too, with every guest that runs there. So you
are asked, unless you say --yes. It is enough to say it again where the answer was lost.

` + proofHelp,
		Example: "  berth host fence host-b\n  berth host fence host-b --yes && berth evacuate --host host-b",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, fenceTime, func(ctx context.Context, c *api.Client) error {
				d, err := a.fence(ctx, c, args[0], sure)
				if err != nil {
					return err
				}
				return a.print(d, func(w io.Writer) { fmt.Fprintln(w, deathWords(d)) })
			})
		},
	}
	cmd.Flags().BoolVarP(&sure, "yes", "y", false, "do not ask")
	return cmd
}

// fenceTime is for hooks that wait until a machine is off. Arbitrary.
const fenceTime = 10 * time.Minute

// fence asks whether to, and has a host switched off.
func (a *app) fence(ctx context.Context, c *api.Client, host string, sure bool) (fleet.Death, error) {
	if !sure {
		question := "This switches host " + host + " off, and ends every guest that runs there."
		// Best effort: whether it answers is worth knowing, and no more.
		if hosts, err := c.Hosts(ctx); err == nil && slices.ContainsFunc(hosts, func(h api.HostEntry) bool { return h.Name == host && h.Reachable }) {
			question = "ITS AGENT ANSWERS: host " + host + " is alive. " + question
		}
		if err := a.sure(false, "fence host "+host, question); err != nil {
			return fleet.Death{}, err
		}
	}
	return c.FenceHost(ctx, host)
}

func (a *app) hostDeclareDead() *cobra.Command {
	var r api.DeclareDead
	cmd := &cobra.Command{
		Use: "declare-dead HOST --reason TEXT", Short: "Say that a host is off, after you have checked", Args: cobra.ExactArgs(1),
		Long: `Say that a host is off and stays off, so that its guests can be evacuated. Berth
believes you: when the host runs after all, and has storage in common with others,
each of its guests may then run twice and destroy its disks. Check first that its
power is off, or that it is cut off from its storage.

It is refused while the host's agent answers, and for a name that neither the fleet's
records nor Placement have, unless you say --force.

` + proofHelp,
		Example: "  berth host declare-dead host-b --reason \"pulled both power cords, rack 4\"",
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(r.Because) == "" {
				return misused("declare host %s dead: say --reason TEXT: what you have checked", args[0])
			}
			return a.ask(cmd, settleTime, func(ctx context.Context, c *api.Client) error {
				d, err := c.DeclareDead(ctx, args[0], r)
				if err != nil {
					return err
				}
				return a.print(d, func(w io.Writer) { fmt.Fprintln(w, deathWords(d)) })
			})
		},
	}
	cmd.Flags().StringVar(&r.Because, "reason", "", "what you have checked, in your `words`")
	cmd.Flags().BoolVar(&r.Force, "force", false, "though its agent answers, or nobody knows the host")
	return cmd
}

func (a *app) hostForget() *cobra.Command {
	var r api.ForgetHost
	cmd := &cobra.Command{
		Use: "forget HOST", Short: "Give up what a dead host that never returns still holds", Args: cobra.ExactArgs(1),
		Long: `Give up what a dead host still holds, when it will never return: its half of each
evacuation, its allocations, and its resource provider where nothing is left on it.

It is refused while guests of it are to be evacuated, and names them; --abandon-guests
gives them up. It needs the same proof as an evacuation does. A host that returns all
the same finds that it is forgotten: it gives up its guests before it starts anything.

` + proofHelp,
		Example: "  berth host forget host-b",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, workTime, func(ctx context.Context, c *api.Client) error {
				f, err := c.ForgetHost(ctx, args[0], r)
				if err != nil {
					return err
				}
				return a.print(f, func(w io.Writer) { forgottenTable(w, f) })
			})
		},
	}
	cmd.Flags().BoolVar(&r.Abandon, "abandon-guests", false, "give up its guests that nobody has evacuated")
	return cmd
}

func forgottenTable(w io.Writer, f api.Forgotten) {
	fmt.Fprintf(w, "%s is forgotten\n", f.Host)
	if n := len(f.Evacuations); n > 0 {
		fmt.Fprintf(w, "its half of %s is given up\n", count(n, "evacuation"))
	}
	for _, g := range f.Abandoned {
		fmt.Fprintf(w, "%s is given up: nobody runs it any more (%s)\n", g.Name, g.Instance)
	}
	switch {
	case f.ProviderRemoved:
		fmt.Fprintln(w, "its resource provider is removed")
	case f.ProviderKept != "":
		fmt.Fprintf(w, "its resource provider stays: %s\n", f.ProviderKept)
	}
}

// deathWords are a death in one line.
func deathWords(d fleet.Death) string {
	how := map[fleet.Proof]string{
		fleet.ProofFenced: "fenced", fleet.ProofOperator: "by an operator's word", fleet.ProofSelfFence: "reset by its own watchdog",
	}[d.Proof]
	words := fmt.Sprintf("%s is dead: %s, asked for by %s, %s", d.Host, cmp.Or(how, string(d.Proof)), d.By, ago(d.At))
	if d.Because != "" {
		words += ": " + d.Because
	}
	if d.Forgotten {
		words += " (forgotten)"
	}
	return words
}

// listedHosts are the hosts that Placement and [peers] know, and what the fleet's records
// say of them.
type listedHosts struct {
	api.HostList
	Fleet *api.FleetHosts `json:"fleet"` // null where there are no records, or they do not answer
	// FleetError is why they could not be read; empty where there are none.
	FleetError string `json:"fleet_error,omitempty"`
	// Skew is which versions they run; null where all that answer run the same.
	Skew *skew `json:"skew,omitempty"`
}

// records looks at what the hosts run, and asks for the fleet's records, which a list of hosts
// can do without.
func (l *listedHosts) records(ctx context.Context, c *api.Client) {
	l.Skew = skewOf(l.Hosts)
	f, err := c.FleetHosts(ctx)
	switch {
	case err == nil:
		l.Fleet = &f
	case !slices.ContainsFunc(fault.ReasonsOf(err), func(r fault.Reason) bool { return r.Code == "no_fleet_store" || r.Code == "peer_too_old" }):
		l.FleetError = err.Error()
	}
}

// of gives what the records say of a host; nil for nothing.
func (l *listedHosts) of(name string) *api.FleetHost {
	if l.Fleet == nil {
		return nil
	}
	for i := range l.Fleet.Hosts {
		if l.Fleet.Hosts[i].Name == name {
			return &l.Fleet.Hosts[i]
		}
	}
	return nil
}

func hostListTable(w io.Writer, l listedHosts, width int) {
	columns := func(all ...any) []any {
		if l.Fleet == nil {
			all = slices.Delete(all, 5, 7) // what records say is a column only where there are some
		}
		return all
	}
	list := screen.Table{Spare: []string{"PROVIDER", "ADDRESS", "BERTH", "MODE"}, Full: "berth host list -o json has all"}
	for _, name := range columns("HOST", "ADDRESS", "ANSWERS", "MODE", "BERTH", "RECORDS", "GUESTS", "PROVIDER", "REMARK") {
		list.Columns = append(list.Columns, name.(string))
	}
	for _, h := range l.Hosts {
		remark := h.Error
		if h.Disabled != "" {
			remark = strings.TrimSpace("DISABLED: " + h.Disabled + " " + remark)
		}
		if h.Local {
			remark = strings.TrimSpace("this host " + remark)
		}
		says, guests := recordWords(l.of(h.Name))
		list.Rows = append(list.Rows, columns(h.Name, h.Address, yes(h.Reachable), h.Mode, h.Version, says, guests, h.ProviderUUID, remark))
	}
	if l.Fleet != nil {
		for _, h := range l.Fleet.Hosts {
			if !slices.ContainsFunc(l.Hosts, func(e api.HostEntry) bool { return e.Name == h.Name }) {
				says, guests := recordWords(&h)
				list.Rows = append(list.Rows, columns(h.Name, "", "no", "", "", says, guests, "", "known by its record alone"))
			}
		}
	}
	list.Write(w, width)
	if l.Fleet != nil {
		for _, h := range l.Fleet.Hosts {
			deadLines(w, h)
		}
		if len(l.Fleet.Unreadable) > 0 {
			fmt.Fprintf(w, "\nrecords that cannot be read, and were passed over: %s\n", strings.Join(l.Fleet.Unreadable, ", "))
		}
	}
	if l.Skew != nil {
		l.Skew.lines(w)
	}
	if l.FleetError != "" {
		fmt.Fprintf(w, "\nthe fleet's records do not answer, and nothing can be evacuated meanwhile: %s\n", l.FleetError)
	}
}

// recordWords are what the records say of a host, for the table.
func recordWords(h *api.FleetHost) (says, guests string) {
	switch {
	case h == nil:
		return "none", "-"
	case h.Death != nil && h.Death.Forgotten:
		says = "dead, forgotten"
	case h.Death != nil:
		says = "DEAD"
	case h.Lease == api.LeaseHeld:
		says = "alive"
	case h.Lease == api.LeaseExpired:
		says = "LEASE OVER"
	default:
		says = "kept" // by a store that does not know who is alive
	}
	return says, fmt.Sprint(h.Guests)
}

// deadLines say of a host that is dead, or may be, what is left to be done.
func deadLines(w io.Writer, h api.FleetHost) {
	switch {
	case h.Death != nil:
		fmt.Fprintf(w, "\n%s\n", deathWords(*h.Death))
	case h.Lease == api.LeaseExpired:
		fmt.Fprintf(w, "\n%s: its lease is over, which alone proves nothing: it may be cut off, and run\n", h.Name)
		if h.SelfFence {
			fmt.Fprintf(w, "  to do: berth evacuate --host %s (its watchdog resets it when its lease is over, which then counts as a proof)\n", h.Name)
		} else {
			fmt.Fprintf(w, "  to do: berth host fence %s; or check that it is off, and: berth host declare-dead %s --reason TEXT\n", h.Name, h.Name)
		}
	case len(h.ToCleanUp) > 0:
		fmt.Fprintf(w, "\n%s is back, and cleans up\n", h.Name)
	default:
		return
	}
	if len(h.ToEvacuate) > 0 {
		var names []string
		for _, g := range h.ToEvacuate {
			name := cmp.Or(g.Name, g.Instance)
			if g.Moving != "" {
				name += " (on migration " + g.Moving + ": settle it first)"
			}
			names = append(names, name)
		}
		fmt.Fprintf(w, "  to be evacuated: %s\n", strings.Join(names, ", "))
		fmt.Fprintf(w, "  to do: berth evacuate --host %s\n", h.Name)
	}
	if h.WithoutRecordError != "" {
		fmt.Fprintf(w, "  instances without a record are not known: %s\n", h.WithoutRecordError)
	}
	for _, u := range h.WithoutRecord {
		fmt.Fprintf(w, "  without a record, and not evacuated: %s (%s)\n", u.Instance, u.Why)
	}
	if len(h.WithoutRecord) > 0 {
		fmt.Fprintln(w, "  to do: define it by hand where its disks are, then: berth instance adopt UUID")
	}
	if len(h.ToCleanUp) > 0 {
		var names []string
		for _, e := range h.ToCleanUp {
			names = append(names, cmp.Or(e.Name, e.Instance)+" (now on "+e.To+")")
		}
		fmt.Fprintf(w, "  cleans up when it returns: %s\n", strings.Join(names, ", "))
		if h.Death != nil {
			fmt.Fprintf(w, "  if it never does: berth host forget %s\n", h.Name)
		}
	}
}

// hostOf gives the host that has a guest by the fleet's records.
func hostOf(ctx context.Context, c *api.Client, guest string) (string, error) {
	i, err := c.FleetInstance(ctx, guest)
	if errors.Is(err, fault.NotFound) {
		return "", fault.Refuse(fault.NotFound, "find the host of "+guest, fault.Reason{
			Code: "no_record", Message: "the fleet's records know no guest " + guest, Have: guest, Change: "say its uuid; berth host list shows which hosts keep records",
		})
	}
	return i.Host, err
}

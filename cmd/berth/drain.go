package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/agent/api"
	"berth/internal/fault"
)

// errLeftBehind ends a drain that was told, and that has left guests behind. Nothing more is
// printed.
var errLeftBehind = errors.New("guests are left behind")

// priorityFlags are the order in which guests go.
type priorityFlags struct{ priority, first, last []string }

func (x *priorityFlags) register(f *pflag.FlagSet) {
	f.StringArrayVar(&x.priority, "priority", nil, "`GUEST=N`: a higher N goes earlier, none is 0; may be given again")
	f.StringArrayVar(&x.first, "first", nil, "`GUEST` that goes before all others; may be given again, in order")
	f.StringArrayVar(&x.last, "last", nil, "`GUEST` that goes after all others; may be given again, in order")
}

func (x *priorityFlags) given() bool { return len(x.priority)+len(x.first)+len(x.last) > 0 }

// farPriority is beyond what anybody types.
const farPriority = 1_000_000

// read gives each guest's priority; nil for none.
func (x *priorityFlags) read() (map[string]int, error) {
	if !x.given() {
		return nil, nil
	}
	out := map[string]int{}
	set := func(guest string, n int) error {
		if _, twice := out[guest]; twice || guest == "" {
			return misused("--priority, --first, --last: guest %q: want each once", guest)
		}
		out[guest] = n
		return nil
	}
	for _, text := range x.priority {
		guest, number, ok := strings.Cut(text, "=")
		n, err := strconv.Atoi(number)
		if !ok || err != nil || n <= -farPriority || n >= farPriority {
			return nil, misused("--priority %q: want GUEST=NUMBER, such as db-1=10", text)
		}
		if err := set(guest, n); err != nil {
			return nil, err
		}
	}
	for i, guest := range x.first {
		if err := set(guest, farPriority+len(x.first)-i); err != nil {
			return nil, err
		}
	}
	for i, guest := range x.last {
		if err := set(guest, -farPriority-i); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (a *app) hostDrain() *cobra.Command {
	var r api.DrainRequest
	var w drainWishes
	var order priorityFlags
	cmd := &cobra.Command{
		Use:   "drain [HOST]",
		Short: "Move all guests away from a host: a plan first, then some at once",
		Long: `Move all guests away from a host: the one that is asked, or HOST. First the plan is
shown, and you are asked whether to go on:

  HOW    live   it runs on while it moves
         cold   it is off, or is shut down for its move; the latter only with --cold
         stays  it cannot be moved, and is left behind; why stands below the table
  TO     where it would go now; the move itself decides. "nowhere yet" is tried again
         as others leave and make room

Then the host is closed for new guests, as by berth host set --disable, and the guests
move, several at once: as many as [migration] max_outbound says of this host and
max_inbound of each destination. One that fails is tried again later, [drain] attempts
times, after all that have not failed. The drain goes on without this command, also
over a restart of the agent; Ctrl-C stops watching, never the drain.

The host stays closed when it is empty: berth host set --enable opens it again. berth
host drain-abort begins no further move and gives back what was before.

Exits with 0 when the host is empty, and with 8 when a guest was left behind; each is
named with what keeps it. --plan exits with 7 when one would stay, or could go nowhere
yet.`,
		Example: `  berth host drain --plan
  berth host drain host-a --cold --yes
  berth host drain --to host-b --to host-c --first db-1 --last build-1
  berth host drain --yes --detach && berth host drain-watch`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if r.Priorities, err = order.read(); err != nil {
				return err
			}
			r.UUID = uuid.NewString()
			if len(args) > 0 {
				r.Host = args[0]
			}
			c, err := a.dialHost(cmd.Context(), r.Host, !w.plan)
			if err != nil {
				return err
			}
			defer c.Close()
			return a.drain(cmd.Context(), c, r, w)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&w.plan, "plan", false, "only show the plan")
	f.BoolVarP(&w.sure, "yes", "y", false, "do not ask")
	f.BoolVar(&w.detach, "detach", false, "return when it has begun")
	f.BoolVar(&r.Cold, "cold", false, "shut down those that run and cannot move live; they start again where they go")
	f.StringArrayVar(&r.To, "to", nil, "only to this `HOST`; may be given again")
	order.register(f)
	return cmd
}

// dialHost reaches the agent of a host; empty for the one that is asked. What changes
// something is asked of it alone, and is refused here where it would only be passed on,
// before somebody reads a plan.
func (a *app) dialHost(ctx context.Context, host string, changes bool) (*api.Client, error) {
	if host == "" {
		return a.dial()
	}
	direct := a.connect == "" && a.certFile != ""
	if direct {
		a.connect = host
	}
	c, err := a.dial()
	if err != nil || direct || a.connect == host {
		return c, err
	}
	if changes {
		asking, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		s, err := c.Status(asking)
		if err == nil && s.Name != host {
			err = fault.Refuse(fault.Forbidden, "drain host "+host, fault.Reason{
				Code: "not_own_host", Message: "host " + s.Name + " is the one that is asked, and a host drains itself",
				Change: "run the command on " + host + ", or show it an operator's certificate: --connect " + host + " --cert FILE",
			})
		}
		if err != nil {
			c.Close()
			return nil, err
		}
	}
	return c.Via(host), nil
}

// drainWishes are what is to be done of a drain.
type drainWishes struct{ plan, sure, detach bool }

// drain shows the plan, asks, begins and watches.
func (a *app) drain(ctx context.Context, c *api.Client, r api.DrainRequest, w drainWishes) error {
	asking, cancel := context.WithTimeout(ctx, planTime)
	planned := r
	planned.UUID = ""
	p, err := c.PlanDrain(asking, planned)
	cancel()
	if err != nil {
		return err
	}
	if w.plan || !a.json {
		if err := a.print(p, func(w io.Writer) { drainPlanTable(w, p) }); err != nil {
			return err
		}
	}
	leaving, staying := splitPlan(p)
	if w.plan {
		if len(staying) > 0 || nowhereYet(leaving) > 0 {
			return errDegraded
		}
		return nil
	}
	verb := "drain"
	if p.Evacuate {
		verb = "evacuate"
	}
	if !w.sure && p.Evacuate && !r.AcceptLoss && a.answered() {
		if lost := lossOf(p); len(lost) > 0 {
			if err := a.sure(false, verb+" host "+p.Host, "DATA WOULD BE LOST. "+strings.Join(lost, ". ")+". This cannot be undone."); err != nil {
				return err
			}
			// Anew: what stayed for that reason goes now.
			r.AcceptLoss = true
			return a.drain(ctx, c, r, w)
		}
	}
	if err := a.sure(w.sure, verb+" host "+p.Host, drainQuestion(p, leaving, staying)); err != nil {
		return err
	}
	beginning, cancel := context.WithTimeout(ctx, 2*time.Minute)
	d, err := c.BeginDrain(beginning, r)
	cancel()
	if err != nil {
		return err
	}
	if w.detach {
		return a.printDrain(d)
	}
	return a.watchDrain(ctx, c, d.Host, false)
}

// lossOf names the disks whose loss alone keeps guests from being evacuated.
func lossOf(p api.DrainPlan) []string {
	var out []string
	for _, g := range p.Guests {
		if g.How == api.DrainStays || g.To == "" {
			for _, text := range lostReasons(fault.Refuse(fault.Forbidden, "evacuate", g.Blockers...)) {
				if text = g.Name + ": " + text; !slices.Contains(out, text) {
					out = append(out, text)
				}
			}
		}
	}
	return out
}

// watchDrain follows a drain to its end, and tells what it came to. each makes every record
// a line of JSON; else only the last one is printed.
func (a *app) watchDrain(ctx context.Context, c *api.Client, host string, each bool) error {
	var last api.Drain
	p := newDrainProgress(a)
	err := c.WatchDrain(ctx, host, watchPatience, func(d api.Drain) error {
		last = d
		switch {
		case a.json && each:
			return a.printLine(d)
		case !a.json:
			p.show(d)
		}
		return nil
	})
	p.end()
	if ctx.Err() != nil && !last.State.Over() {
		return fault.Refuse(fault.InDoubt, "stopped watching the drain of "+host, fault.Reason{
			Code: "going_on", Message: "it goes on without this command", Change: "berth host drain-watch " + host + ", or berth host drain-abort " + host,
		})
	}
	if err != nil {
		return err
	}
	if a.json && !each {
		if err := a.printDrain(last); err != nil {
			return err
		}
	}
	if !a.json {
		if err := a.print(nil, func(w io.Writer) { drainResult(w, last) }); err != nil {
			return err
		}
	}
	return drainError(last)
}

// drainError is how a drain has ended, for the exit code.
func drainError(d api.Drain) error {
	if d.State == api.DrainDone || !d.State.Over() {
		return nil
	}
	return errLeftBehind
}

func (a *app) printDrain(d api.Drain) error {
	return a.print(d, func(w io.Writer) { drainTable(w, d) })
}

// ofDrain asks the host that drains: the one that is asked, or HOST itself. Without HOST it
// is the newest drain that the asked one does.
func (a *app) ofDrain(ctx context.Context, args []string) (*api.Client, api.Drain, error) {
	c, err := a.dial()
	if err != nil {
		return nil, api.Drain{}, err
	}
	asking, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if len(args) == 0 {
		var list []api.Drain
		if list, err = c.Drains(asking); err == nil && len(list) == 0 {
			err = fault.New(fault.NotFound, "this host drains and evacuates none, and has not")
		}
		if err != nil {
			c.Close()
			return nil, api.Drain{}, err
		}
		for _, d := range list {
			if !d.State.Over() {
				return c, d, nil
			}
		}
		return c, list[0], nil
	}
	d, err := c.Drain(asking, args[0])
	if errors.Is(err, fault.NotFound) && a.connect == "" {
		// Another host's own; a dead one is evacuated by the one that was asked.
		if there, elsewhere := c.Via(args[0]).Drain(asking, args[0]); elsewhere == nil {
			return c.Via(args[0]), there, nil
		}
	}
	if err != nil {
		c.Close()
		return nil, api.Drain{}, err
	}
	return c, d, nil
}

func (a *app) hostDrainStatus() *cobra.Command {
	return &cobra.Command{
		Use: "drain-status [HOST]", Short: "Show how far a drain is, guest by guest", Args: cobra.MaximumNArgs(1),
		Long:    "Show the newest drain of HOST, or without it the one that the asked host does, or did last:\neach guest, what it waits for, and why one is left behind. So too of `berth evacuate --host`.",
		Example: "  berth host drain-status\n  berth host drain-status host-b --json | jq '.guests[] | select(.state == \"failed\")'",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, d, err := a.ofDrain(cmd.Context(), args)
			if err != nil {
				return err
			}
			defer c.Close()
			return a.printDrain(d)
		},
	}
}

func (a *app) hostDrainWatch() *cobra.Command {
	return &cobra.Command{
		Use: "drain-watch [HOST]", Short: "Follow a drain to its end; its result is the exit code", Args: cobra.MaximumNArgs(1),
		Long: "Follow a drain to its end. With --json each change is one line. Exits with 0 when the\nhost is empty, and with 8 when a guest was left behind.",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, d, err := a.ofDrain(cmd.Context(), args)
			if err != nil {
				return err
			}
			defer c.Close()
			return a.watchDrain(cmd.Context(), c, d.Host, true)
		},
	}
}

func (a *app) hostDrainAbort() *cobra.Command {
	return &cobra.Command{
		Use: "drain-abort [HOST]", Short: "Begin no further move of a drain, and give up those that can be", Args: cobra.MaximumNArgs(1),
		Long: `Begin no further move of a drain, and give up those that can be; those past their
point of no return are finished. The guests that have moved stay where they are, and
the host takes new guests again if it did before the drain.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, d, err := a.ofDrain(cmd.Context(), args)
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), answerTime)
			defer cancel()
			if d, err = c.AbortDrain(ctx, d.Host); err != nil {
				return err
			}
			if err := a.printDrain(d); err != nil {
				return err
			}
			if !a.json && !d.State.Over() {
				fmt.Fprintln(a.out, "\nwhat is under way is being given up: berth host drain-watch")
			}
			return nil
		},
	}
}

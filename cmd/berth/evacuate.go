package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/internal/screen"
	"berth/migration"
)

// evacuateFlags are what may be said of an evacuation, of one guest or of a host.
type evacuateFlags struct {
	host       string
	to         []string
	alternates []string
	stopped    bool
	image      migration.Image
	loss       bool
	plan       bool
	fence      bool
	dead       bool
	because    string
	sure       bool
	detach     bool
	priorities priorityFlags
}

func (x *evacuateFlags) register(f *pflag.FlagSet) {
	f.StringVar(&x.host, "host", "", "evacuate all guests of this dead `HOST`")
	f.StringArrayVar(&x.to, "to", nil, "with --host: only to this `HOST`; may be given again")
	f.StringArrayVar(&x.alternates, "alternate", nil, "`HOST` that is tried when the one before refuses; may be given again")
	f.BoolVar(&x.stopped, "stopped", false, "leave it off")
	f.StringVar(&x.image.Path, "image", "", "`file`, on the host that the guest goes to, from which its first disk is made where no host shares it")
	f.StringVar(&x.image.Format, "image-format", "", "raw or qcow2 (default: by the file's ending)")
	f.BoolVar(&x.loss, "accept-data-loss", false, "what was written to disks that are made anew is lost, and may be")
	f.BoolVar(&x.plan, "plan", false, "only show where it could go")
	f.BoolVar(&x.fence, "fence", false, "fence the host first (berth host fence HOST)")
	f.BoolVar(&x.dead, "host-is-dead", false, "say first that the host is dead (berth host declare-dead HOST)")
	f.StringVar(&x.because, "reason", "", "with --host-is-dead: what you have checked, in your `words`")
	f.BoolVarP(&x.sure, "yes", "y", false, "do not ask")
	f.BoolVar(&x.detach, "detach", false, "return when it is accepted")
	x.priorities.register(f)
}

// check refuses what contradicts itself, and gives the image; nil for none.
func (x *evacuateFlags) check(args []string) (*migration.Image, error) {
	switch {
	case (x.host == "") == (len(args) == 0):
		return nil, misused("evacuate: name an instance, or with --host a host, and not both")
	case len(x.to) > 0 && x.host == "":
		return nil, misused("--to is of --host: name the host after the instance")
	case len(x.alternates) > 0 && x.host != "":
		return nil, misused("--alternate is of one guest: with --host say --to")
	case x.host == "" && x.priorities.given():
		return nil, misused("--priority, --first and --last are of --host")
	case x.fence && x.dead:
		return nil, misused("--fence and --host-is-dead: say one of them")
	case x.dead && strings.TrimSpace(x.because) == "":
		return nil, misused("--host-is-dead: say --reason TEXT: what you have checked")
	case !x.dead && x.because != "":
		return nil, misused("--reason is of --host-is-dead")
	case x.plan && (x.fence || x.dead):
		return nil, misused("--plan changes nothing: not with --fence or --host-is-dead")
	}
	if x.image.Path == "" {
		if x.image.Format != "" {
			return nil, misused("--image-format without --image")
		}
		return nil, nil
	}
	return &x.image, checkImage(x.image)
}

// checkImage refuses an image that no host can find.
func checkImage(i migration.Image) error {
	switch {
	case !filepath.IsAbs(i.Path):
		return misused("--image %q: want the image's absolute path on the guest's host", i.Path)
	case !slices.Contains([]string{"", "raw", "qcow2"}, i.Format):
		return misused("--image-format %q: want raw or qcow2", i.Format)
	}
	return nil
}

func (a *app) evacuateCommand() *cobra.Command {
	var x evacuateFlags
	cmd := &cobra.Command{
		Use:   "evacuate INSTANCE [HOST] | evacuate --host HOST",
		Short: "Bring a guest of a dead host back to life on another one",
		Long: `Bring a guest whose host is dead back to life on HOST, or on the best host that
Placement offers; or with --host all guests of a dead one, some at once, as a drain
does. The host that is asked conducts. Until the guest is given to its new host all is
put back when something fails, and the command exits with 8.

` + proofHelp + ` --fence and
--host-is-dead give the proof first.

Its disks are used as they are where the new host shares them. A disk that it does not
share is made anew from the image that it was made from, or from --image; then

  ALL THAT WAS WRITTEN TO IT SINCE IS LOST.

That is refused, and each such disk named, until you say --accept-data-loss or answer
yes. berth evacuate --plan says beforehand what would be lost.

The guest runs again if it ran, unless --stopped is said. Ctrl-C stops watching, never
the evacuation. With --host the command exits with 8 where a guest was left behind;
berth host drain-status HOST shows it again.`,
		Example: `  berth evacuate web-1 --plan
  berth evacuate web-1
  berth evacuate web-1 host-c --alternate host-d --stopped
  berth evacuate web-1 --host-is-dead --reason "pulled both power cords, rack 4"
  berth evacuate --host host-b --fence --yes
  berth evacuate --host host-b --first db-1 --accept-data-loss`,
		Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			image, err := x.check(args)
			if err != nil {
				return err
			}
			if x.host != "" {
				r := api.DrainRequest{
					UUID: uuid.NewString(), Host: x.host, Evacuate: true, To: x.to, Stopped: x.stopped, AcceptLoss: x.loss, Image: image,
				}
				if r.Priorities, err = x.priorities.read(); err != nil {
					return err
				}
				return a.evacuateHost(cmd.Context(), r, x)
			}
			r := api.Migrate{
				Instance: args[0], Migration: uuid.NewString(), MigrationType: migration.TypeEvacuation,
				Alternates: x.alternates, Stopped: x.stopped, AcceptLoss: x.loss, Image: image,
			}
			if len(args) == 2 {
				r.Destination = args[1]
			}
			for i, name := range r.Alternates {
				if name == "" || name == r.Destination || slices.Contains(r.Alternates[:i], name) {
					return misused("--alternate %q: want each host once", name)
				}
			}
			if x.plan {
				return a.plan(cmd, api.PlanRequest{Instance: r.Instance, Destination: r.Destination, Kind: migration.PlanEvacuation, Image: image, AcceptLoss: x.loss})
			}
			return a.evacuateGuest(cmd.Context(), r, x)
		},
	}
	x.register(cmd.Flags())
	return cmd
}

// prove gives the proof of a host's death that was asked for.
func (a *app) prove(ctx context.Context, c *api.Client, host string, x evacuateFlags) error {
	switch {
	case x.fence:
		ctx, cancel := context.WithTimeout(ctx, fenceTime)
		defer cancel()
		d, err := a.fence(ctx, c, host, x.sure)
		if err == nil && !a.json {
			fmt.Fprintln(a.out, deathWords(d))
		}
		return err
	case x.dead:
		ctx, cancel := context.WithTimeout(ctx, settleTime)
		defer cancel()
		d, err := c.DeclareDead(ctx, host, api.DeclareDead{Because: x.because})
		if err == nil && !a.json {
			fmt.Fprintln(a.out, deathWords(d))
		}
		return err
	}
	return nil
}

// evacuateHost evacuates all guests of a dead host.
func (a *app) evacuateHost(ctx context.Context, r api.DrainRequest, x evacuateFlags) error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	if err := a.prove(ctx, c, r.Host, x); err != nil {
		return err
	}
	return a.drain(ctx, c, r, drainWishes{plan: x.plan, sure: x.sure, detach: x.detach})
}

// evacuateGuest evacuates one guest, and watches it.
func (a *app) evacuateGuest(ctx context.Context, r api.Migrate, x evacuateFlags) error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	if x.fence || x.dead {
		asking, cancel := context.WithTimeout(ctx, answerTime)
		host, err := hostOf(asking, c, r.Instance)
		cancel()
		if err == nil {
			err = a.prove(ctx, c, host, x)
		}
		if err != nil {
			return err
		}
	}
	for {
		last, err := a.evacuateOnce(ctx, c, r, x.detach)
		lost := lostReasons(err)
		if len(lost) == 0 || r.AcceptLoss || !a.answered() {
			switch {
			case last.UUID == "":
				return err
			case x.detach:
				return a.printMigration(last)
			}
			return a.told(last, false, err)
		}
		// The same again, with a uuid of its own: the first is over.
		if r.AcceptLoss, err = true, a.sure(false, "evacuate "+r.Instance, "DATA WOULD BE LOST. "+strings.Join(lost, ". ")+". This cannot be undone."); err != nil {
			return err
		}
		r.Migration = uuid.NewString()
	}
}

// evacuateOnce gives the last record that was seen; none where it was not accepted.
func (a *app) evacuateOnce(ctx context.Context, c *api.Client, r api.Migrate, detach bool) (migration.Migration, error) {
	// The checks on each host come before the answer.
	asking, cancel := context.WithTimeout(ctx, 2*time.Minute)
	m, err := c.Migrate(asking, r)
	cancel()
	if err != nil {
		return migration.Migration{}, err
	}
	if detach {
		return m, nil
	}
	return a.follow(ctx, c, m.UUID, m.ConductedBy(), r.Destination, false)
}

// lostReasons are the disks whose loss keeps a guest from being evacuated, where that alone
// does: then whoever accepts it can go on.
func lostReasons(err error) []string {
	if err == nil || errors.Is(err, fault.InDoubt) {
		return nil
	}
	var out []string
	for _, r := range fault.ReasonsOf(err) {
		if r.Code != migration.ReasonDataLost {
			continue
		}
		if !slices.Contains(out, r.Message) {
			out = append(out, r.Message)
		}
	}
	return out
}

// evacuatedWords say what an evacuation that is over has come to, what was lost by it, and
// who has still to clean up.
func evacuatedWords(m migration.Migration) string {
	e := m.Evacuation
	if e == nil {
		e = &migration.Evacuation{}
	}
	does := "runs"
	switch {
	case e.NotStarted != "":
		does = "is OFF"
	case !e.Started:
		does = "is shut off"
	}
	words := fmt.Sprintf("%s %s on %s, evacuated from %s", m.InstanceName, does, m.DestCompute, m.SourceCompute)
	if e.NotStarted != "" {
		words += "\nIT COULD NOT BE STARTED: " + e.NotStarted
	}
	if len(e.Lost) > 0 {
		words += "\nDATA WAS LOST: what was written to " + strings.Join(e.Lost, ", ") + " is gone, and the disk made anew from its image"
		if len(e.Lost) > 1 {
			words = strings.Replace(words, "and the disk made anew from its image", "and the disks made anew from their images", 1)
		}
	}
	if m.Status != migration.StatusCompleted {
		words += fmt.Sprintf("\n%s cleans up what it has of it when it returns; if it never does: berth host forget %s", m.SourceCompute, m.SourceCompute)
	}
	return words
}

// evacuationRows are what the record of an evacuation says beside that of every move.
func evacuationRows(w io.Writer, e migration.Evacuation) {
	if p := e.Proof; p != nil {
		screen.Row(w, "source is dead", fmt.Sprintf("%s, by %s: %s", p.Proof, p.By, p.Because))
	}
	if len(e.Shared) > 0 {
		screen.Row(w, "disks kept", strings.Join(e.Shared, ", "))
	}
	if len(e.Made) > 0 {
		screen.Row(w, "disks made anew", strings.Join(e.Made, ", "))
	}
	if len(e.Lost) > 0 {
		screen.Row(w, "DATA LOST", "what was written to "+strings.Join(e.Lost, ", "))
	}
	if e.NotStarted != "" {
		screen.Row(w, "not started", e.NotStarted)
	}
}

package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"berth/internal/store"
	"berth/migration"
	"berth/test/fleet"
	"berth/test/guest"
)

// Options say what Run does.
type Options struct {
	Rounds int
	Seed   uint64 // of the first round; each has the next
	// Budget bounds the whole run; 0 for no bound. A round that has begun is ended.
	Budget time.Duration
	Only   *regexp.Regexp // faults; nil for all
	Kinds  []Kind         // of stories; nil for all
	// Transport is how guests travel; empty for Berth's own streams. See config.
	Transport string
	Dir       string // for fleets; made and removed
	Logs      string // where failed rounds leave theirs
	// Guest is after how many rounds another guest comes, with the other storage; 0
	// for 50.
	Guest int
	// Say is told of each round, a line.
	Say func(format string, args ...any)
}

// Run does rounds until all are done or the budget is used up. A failed round
// keeps its logs, and the next one has a fresh fleet. The error is that of the
// surroundings; what rounds came to is in the report.
func Run(ctx context.Context, o Options) (rep Report, err error) {
	begun := time.Now()
	defer func() { rep.Took = time.Since(begun) }()
	if o.Guest == 0 {
		o.Guest = 50
	}
	if o.Kinds == nil {
		o.Kinds = Kinds
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return rep, err
	}
	binary, err := fleet.Build(ctx, o.Dir)
	if err != nil {
		return rep, err
	}
	image, err := guest.Build(ctx, "")
	if err != nil {
		return rep, err
	}
	w := &world{o: o, binary: binary, image: image}
	defer func() { err = errors.Join(err, w.end()) }()
	for i := range o.Rounds {
		switch {
		case ctx.Err() != nil:
			rep.Stopped = context.Cause(ctx)
			return rep, nil
		case o.Budget > 0 && time.Since(begun) > o.Budget:
			rep.Stopped = fmt.Errorf("the budget of %s is used up", o.Budget)
			return rep, nil
		}
		if err := w.ready(ctx, storageOf(i/o.Guest)); err != nil {
			return rep, fmt.Errorf("make a fleet: %w", err)
		}
		p := PlanOf(o.Seed+uint64(i), w.table, o.Kinds)
		res := w.b.run(ctx, p)
		if ctx.Err() != nil {
			continue // it was broken off
		}
		if res.Outcome != Failed && i == o.Rounds-1 {
			if res.Err = w.b.ledgersEmpty(ctx); res.Err != nil {
				res.Outcome = Failed
			}
		}
		rep.Rounds = append(rep.Rounds, res)
		o.Say("%3d seed %d  %-8s %4.1f s, over after %s  %s", i+1, p.Seed, res.Outcome, res.Took.Seconds(), seconds(res.Settle), p)
		if res.Outcome == Failed {
			o.Say("    %s", indent(res.Err))
			if err := w.wreck(ctx, res); err != nil {
				return rep, err
			}
		}
	}
	return rep, nil
}

func storageOf(n int) Storage { return []Storage{Copied, Shared}[n%2] }

func indent(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", "\n    ")
}

// world is the fleet that rounds run on, made anew when one was wrecked.
type world struct {
	o      Options
	binary string
	image  guest.Guest
	b      *bed
	made   int
	table  []Fault
}

// ready has a fleet with a guest of a storage.
func (w *world) ready(ctx context.Context, s Storage) error {
	if w.b != nil {
		if w.b.storage == s && w.b.flavor != grownFlavor {
			return nil
		}
		return w.b.boot(ctx, s)
	}
	w.made++
	b, err := makeBed(ctx, filepath.Join(w.o.Dir, fmt.Sprintf("f%d", w.made)), w.binary, w.o.Transport, w.image)
	if err != nil {
		return err
	}
	w.b = b
	if err := b.boot(ctx, s); err != nil {
		return err
	}
	if err := b.learn(ctx); err != nil {
		return fmt.Errorf("a move with no fault: %w", err)
	}
	if w.table == nil {
		if w.table, err = w.faults(); err != nil {
			return err
		}
	}
	return nil
}

// faults is the table as it applies here.
func (w *world) faults() ([]Fault, error) {
	table := slices.DeleteFunc(Faults(), func(f Fault) bool {
		return f.streams && !w.b.streams || w.o.Only != nil && !w.o.Only.MatchString(f.Name) || !slices.ContainsFunc(w.o.Kinds, f.strikes)
	})
	if len(table) == 0 {
		return nil, fmt.Errorf("no fault is called like %s", w.o.Only)
	}
	w.o.Say("%d faults; streams have a process of their own: %v", len(table), w.b.streams)
	return table, nil
}

// learn moves the guest there and back with nothing broken, to see what there is
// when all is well.
func (b *bed) learn(ctx context.Context) error {
	for range 2 {
		if err := b.plainMove(ctx); err != nil {
			return err
		}
	}
	if err := calm(ctx, []func(context.Context) []string{b.ledgers, b.domains, b.audits}); err != nil {
		return err
	}
	if err := await(ctx, truthMost, 50*time.Millisecond, b.noted); err != nil {
		return err
	}
	// What follows a move at its leisure, such as owner files, has followed when
	// nothing has changed for a while.
	for calm := 0; calm < 10; calm++ {
		was := b.plain
		if err := b.settleDown(); err != nil {
			return err
		}
		if !reflect.DeepEqual(was, b.plain) {
			calm = 0
		}
		if !pause(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
	// What a plain move leaves must not pass for what is there anyway.
	for _, thing := range slices.Concat(b.plain.home, b.plain.away, b.plain.third) {
		if thing == "process berth stream" || strings.HasPrefix(thing, "/run/berth/streams/") {
			return fmt.Errorf("it leaves %s", thing)
		}
	}
	return nil
}

// plainMove moves the guest, and notes whether a stream's process was seen.
func (b *bed) plainMove(ctx context.Context) error {
	id := uuid.NewString()
	if err := b.clearConsole(b.other(b.home)); err != nil {
		return err
	}
	if err := b.migrate(ctx, id, 0); err != nil {
		return err
	}
	from := b.home
	err := await(ctx, overMost, 20*time.Millisecond, func() error {
		b.streams = b.streams || len(streamProcesses(from)) > 0
		m, err := b.clients[from].Migration(ctx, id)
		if err == nil && !m.Done() {
			err = fmt.Errorf("the move is %s at step %s", m.Status, m.Step)
		} else if err == nil && m.Outcome != migration.OutcomeCompleted {
			return fmt.Errorf("the move was %s: %w", m.Outcome, m.Error.Err())
		}
		return err
	})
	b.home = b.other(from)
	return err
}

// ledgersEmpty ends both agents and requires that their ledgers hold the guest and
// nothing of any move but its record and what late messages are refused by.
func (b *bed) ledgersEmpty(ctx context.Context) error {
	var all []error
	for _, h := range b.Hosts {
		all = append(all, b.Agent(h.Name).Stop(ctx))
	}
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("stop the agents: %w", err)
	}
	for _, h := range b.Hosts {
		db, err := store.Open(h.Path("/var/lib/berth/berth.db"), store.Options{MustExist: true})
		if err != nil {
			return err
		}
		for _, bucket := range []string{"claims", "instances", "halves", "verbs", "aborts", "tasks"} {
			records, err := db.List(ctx, bucket)
			all = append(all, err)
			for key, value := range records {
				mine := h == b.home && strings.Contains(string(value), b.id) && (bucket == "claims" || bucket == "instances")
				half := bucket == "halves" && !strings.Contains(string(value), `"context":`)
				// What the agent remembers of itself stands under no migration.
				first, _, _ := strings.Cut(key, "/")
				own := bucket == "verbs" && uuid.Validate(first) != nil
				if !mine && !half && !own {
					all = append(all, fmt.Errorf("left in the ledger of %s: %s/%s: %s", h.Name, bucket, key, value))
				}
			}
		}
		all = append(all, db.Close())
	}
	return errors.Join(all...)
}

// wreck keeps the logs of a fleet and ends it.
func (w *world) wreck(ctx context.Context, res Result) error {
	b := w.b
	w.b = nil
	up := b.upAgain(ctx)
	dir := filepath.Join(w.o.Logs, fmt.Sprintf("seed-%d", res.Plan.Seed))
	kept := b.keep(ctx, dir, res, up)
	w.o.Say("    its logs are in %s", dir)
	return errors.Join(kept, b.down())
}

// keep copies what tells what happened.
func (b *bed) keep(ctx context.Context, dir string, res Result, up error) error {
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	text := fmt.Sprintf("seed %d: %s\nmigration %s of %s from %s, struck %v, at step %q\n\n%v\n\nput up again: %v\n",
		res.Plan.Seed, res.Plan, res.Migration, b.name, b.home.Name, res.Struck, res.Step, res.Err, up)
	for _, h := range b.Hosts {
		for _, args := range [][]string{{"migration", "show", res.Migration}, {"status"}, {"claim", "list"}, {"audit"}} {
			if r, err := b.Berth(ctx, h.Name, append(args, "--json")...); err == nil {
				text += fmt.Sprintf("\n%s: berth %s\n%s%s", h.Name, strings.Join(args, " "), r.Stdout, r.Stderr)
			}
		}
		out, err := h.Virsh(ctx, "domstate", "--reason", b.name)
		text += fmt.Sprintf("\n%s: virsh domstate: %s %v\n", h.Name, out, err)
	}
	all := []error{os.WriteFile(filepath.Join(dir, "round"), []byte(text), 0o644)}
	files, err := filepath.Glob(filepath.Join(b.Dir, "*.log"))
	all = append(all, err)
	for _, h := range b.Hosts {
		for _, pattern := range []string{"/var/log/libvirt/libvirtd.log", "/var/log/libvirt/*.console", "/var/log/libvirt/qemu/*.log", "/var/lib/berth/berth.db"} {
			more, err := filepath.Glob(h.Path(pattern))
			files, all = append(files, more...), append(all, err)
		}
	}
	for _, f := range files {
		name := strings.ReplaceAll(strings.TrimPrefix(f, b.Dir+"/"), "/", "_")
		all = append(all, exec.CommandContext(ctx, "cp", f, filepath.Join(dir, name)).Run())
	}
	return errors.Join(all...)
}

func (w *world) end() error {
	if w.b == nil {
		return nil
	}
	return w.b.down()
}

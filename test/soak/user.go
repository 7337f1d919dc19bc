package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"berth/agent/api"
	"berth/migration"
	"berth/test/guest"
	"berth/test/lab"
)

// image is what rebuilt guests boot from: a file of each host.
const image = "/var/lib/libvirt/soak-image.raw"

// shutdownMost is what guests get to shut themselves down: one that has not booted yet
// does not, and one that has takes a few tenths of a second.
const shutdownMost = 4 * time.Second

// ask asks for the round's move.
func (r *round) ask(ctx context.Context) error {
	s := r.plan.Story
	if !s.cold() {
		return r.migrate(ctx, r.uuid, r.plan.Bandwidth)
	}
	shutdown, window := shutdownMost, s.window()
	q := api.Migrate{
		Instance: r.name, Migration: r.uuid, MigrationType: s.migrationType(), Options: migration.Options{Bandwidth: r.plan.Bandwidth},
		ShutdownTimeout: &shutdown,
	}
	switch {
	case s.kind() == Rebuild:
		q.Image = &migration.Image{Path: image}
	case s.crosses():
		q.Destination, q.ConfirmWindow = r.to.Name, &window
	default:
		q.Destination, q.ConfirmWindow = r.from.Name, &window
	}
	if s.resizes() {
		q.FlavorName = r.asked
	}
	q.ShareNothing = s.apart()
	_, err := r.conducts().Migrate(ctx, q)
	return err
}

// makeReady brings guest and host to where the story begins.
func (r *round) makeReady(ctx context.Context) error {
	s := r.plan.Story
	if !s.cold() {
		return nil
	}
	old, err := readBoots(r.from.Console(r.name))
	if err != nil {
		return err
	}
	r.first, r.told = r.boots, len(old)
	if s.kind() == Rebuild {
		id := uuid.New()
		disk, err := guest.WrittenDisk(fmt.Sprintf("%x", id[:8]), 40, diskSize)
		if err != nil {
			return err
		}
		r.image = fmt.Sprintf("%x", id[:8])
		if err := os.WriteFile(r.from.Path(image), disk, 0o644); err != nil {
			return err
		}
	}
	switch s.Power {
	case Off:
		_, err = r.clients[r.from].StopInstance(ctx, r.name, api.StopInstance{})
	case Paused:
		_, err = r.from.Virsh(ctx, "suspend", r.name)
	}
	if err != nil {
		return fmt.Errorf("make the guest %s: %w", s.Power, err)
	}
	r.power = s.Power
	return nil
}

// wake has the guest run again that its user had shut off or paused.
func (r *round) wake(ctx context.Context) (err error) {
	switch r.power {
	case Off:
		_, err = r.clients[r.home].StartInstance(ctx, r.name)
	case Paused:
		_, err = r.home.Virsh(ctx, "resume", r.name)
	}
	if err != nil {
		return fmt.Errorf("have the guest run again that was %s: %w", r.power, err)
	}
	r.power = ""
	return nil
}

// user confirms or reverts a move that has finished, and goes on asking until he is
// heard. It returns when the move is over.
func (r *round) user(ctx context.Context) error {
	var last error
	for words := 0; ; {
		m, err := r.conducts().Migration(ctx, r.uuid)
		switch {
		case err == nil && m.Done():
			return nil
		case err == nil && m.Status == migration.StatusFinished:
			r.lap(m.UpdatedAt)
			if words > 5 {
				return fmt.Errorf("it was told to %s %d times, and is finished again: %w", r.plan.Story.End, words, m.Error.Err())
			}
			if words == 0 && r.plan.Story.Boots {
				if err := r.seeThere(ctx); err != nil {
					return fmt.Errorf("the move is finished: %w", err)
				}
			}
			if r.plan.Story.End == Window && m.Error == nil { // by nobody's hand
				r.begins(m.UpdatedAt.Add(r.plan.Story.window()))
				break
			}
			began := time.Now()
			if err := r.word(ctx); err != nil {
				last = err
				break
			}
			words++
			r.begins(began)
		}
		if !pause(ctx, 100*time.Millisecond) {
			return last
		}
	}
}

// word confirms or reverts, by the host that conducts the move or, every other time, by
// the one where the guest is.
func (r *round) word(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c := r.conducts()
	if r.plan.Seed%2 == 1 && r.plan.Story.crosses() && !r.plan.Story.apart() {
		c = r.clients[r.to]
	}
	var err error
	if r.plan.Story.End == Revert {
		_, err = c.RevertMigration(ctx, r.uuid)
	} else {
		_, err = c.ConfirmMigration(ctx, r.uuid)
	}
	return err
}

// seeThere waits until the guest has booted where it was brought, with what it was to
// have, and has written to its disk.
func (r *round) seeThere(ctx context.Context) error {
	at := r.from
	if r.plan.Story.crosses() {
		at = r.to
	}
	b, err := r.settled(ctx, at, r.first.ID)
	if err != nil {
		return err
	}
	return r.machine(b, r.asked)
}

// settled waits until a guest's newest boot on a host, which is another one than that
// given, has written to its disk and says something now, and gives that boot.
func (b *bed) settled(ctx context.Context, h *lab.Host, not string) (last guest.Boot, err error) {
	said := -1
	err = await(ctx, truthMost, 50*time.Millisecond, func() error {
		boots, err := readBoots(h.Console(b.name))
		if err != nil {
			return err
		}
		last = b.boots // said elsewhere, where the guest has come live since
		if len(boots) > 0 {
			last = boots[len(boots)-1]
		}
		if last.ID == not {
			return fmt.Errorf("the guest has not booted on %s", h.Name)
		}
		beats, err := guest.ReadConsole(h.Console(b.name))
		if err != nil {
			return err
		}
		if said < 0 {
			said = len(beats)
		}
		if n := len(beats); n <= said || beats[n-1].Boot != last.ID || beats[n-1].N < 5 {
			return fmt.Errorf("the guest has booted on %s and says no more", h.Name)
		}
		return nil
	})
	return last, err
}

// readBoots reads what a guest said when it booted; a console that is not there has said
// nothing.
func readBoots(console string) ([]guest.Boot, error) {
	f, err := os.Open(console)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return guest.ParseBoots(f)
}

// strayDisks are files beside a shared disk that nothing should have left there.
func (b *bed) strayDisks() (wrong []string) {
	if b.storage != Shared {
		return nil
	}
	entries, err := os.ReadDir(b.SharedDir())
	if err != nil {
		return []string{err.Error()}
	}
	for _, e := range entries {
		if e.Name() != filepath.Base(b.diskPath()) {
			wrong = append(wrong, "left on the shared storage: "+e.Name())
		}
	}
	return wrong
}

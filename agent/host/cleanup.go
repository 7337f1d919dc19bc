package host

import (
	"cmp"
	"context"
	"errors"

	"berth/agent/host/disks"
	"berth/agent/host/hooks"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// CleanUpSource implements migration.SourceVerbs.
func (h *Host) CleanUpSource(ctx context.Context, ref migration.Ref) error {
	return wrap(h.cleanUpSource(ctx, ref), "clean up after migration %s on %s", ref.Migration, h.o.Name)
}

func (h *Host) cleanUpSource(ctx context.Context, ref migration.Ref) error {
	unlock, err := h.lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	c, ok := h.tracker.Committed(ref.Migration)
	_, moving := h.tracker.Context(ref.Migration)
	if _, known := h.tracker.Instance(ref.Instance); !ok && !known && !moving {
		// Done before: the decision goes when it has been kept for long enough, and
		// a conductor may have been away for longer.
		return h.forgetMigration(ctx, ref)
	}
	if !ok || c.Attempt != ref.Attempt || c.Instance != ref.Instance {
		return fault.New(fault.Forbidden, "its token has not left by attempt %d of this migration", ref.Attempt)
	}
	asked, err := h.streams.Known(ref)
	if err != nil {
		return err
	}
	// By now the guest may have come back by a later migration; then everything
	// of this one was cleaned before it could.
	inst, known := h.tracker.Instance(ref.Instance)
	if !known || inst.Token.Migration != ref.Migration {
		return h.forgetMigration(ctx, ref)
	}
	// Before anything: the destination's copy lives on what is still here, unless it was said
	// to live no more.
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil {
		return err
	}
	if h.wordOn(ref) != migration.WordDestination {
		if err := wholeHere(d, exists); err != nil {
			return err
		}
	}
	if err := h.endSource(ctx, ref); err != nil {
		return err
	}
	if err := h.closeStream(ctx, ref); err != nil {
		return err
	}
	if asked.Found {
		if err := h.removeMoved(ctx, ref, asked.Copied); err != nil {
			return err
		}
		if err := h.phase(ctx, ref, phaseRequest{
			Phase: hooks.PostLiveMigration, Kind: migration.TypeLiveMigration, Source: h.o.Name, Destination: c.To, XML: asked.DomainXML, Power: asked.PowerState,
		}); err != nil {
			return err
		}
	}
	if err := h.dropRecords(ctx, ref.Instance); err != nil {
		return err
	}
	// Record, claim and context go in one commit, after all else.
	if err := h.tracker.Forget(ctx, ref.Instance); err != nil {
		return err
	}
	return h.forgetMigration(ctx, ref)
}

// forgetMigration drops everything that verbs of a migration remembered here.
func (h *Host) forgetMigration(ctx context.Context, ref migration.Ref) error {
	if err := h.forgetStream(ctx, ref); err != nil {
		return err
	}
	return h.tracker.ForgetMigration(ctx, ref.Migration)
}

// endSource removes the source's definition. The file of firmware variables stays:
// where hosts share its folder the guest uses it at the destination, and nothing
// here tells. A domain that runs here now is a
// second copy: its token has left, so it is ended (law 6's one exception).
func (h *Host) endSource(ctx context.Context, ref migration.Ref) error {
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil {
		return err
	}
	if exists && d.Active() {
		h.log.Error("end a copy whose token has left", "instance", ref.Instance, "migration", ref.Migration, "state", d.State, "reason", d.Reason)
		if err := h.driver.Destroy(ctx, ref.Instance); err != nil && !errors.Is(err, fault.NotFound) {
			return err
		}
	}
	// Its disks are not asked about: on shared storage the destination writes to them.
	if err := h.witness.Off(ref.Instance, cmp.Or(d.Name, ref.Instance), nil); err != nil || !exists {
		return err
	}
	if err := h.driver.Undefine(ctx, ref.Instance); err != nil && !errors.Is(err, fault.NotFound) {
		return err
	}
	if _, exists, err = h.domain(ctx, ref.Instance); err != nil {
		return err
	} else if exists {
		return fault.New(fault.Busy, "the domain is still here")
	}
	return nil
}

// removeMoved removes the files of disks that were copied, if nobody else's
// definition names them. Their backing files stay: they may be many guests'.
func (h *Host) removeMoved(ctx context.Context, ref migration.Ref, moved []copiedDisk) error {
	if len(moved) == 0 {
		return nil
	}
	used, err := h.usedFiles(ctx)
	if err != nil {
		return err
	}
	for _, d := range moved {
		log := h.log.With("instance", ref.Instance, "migration", ref.Migration, "disk", d.Target, "path", d.Path)
		file, err := disks.Which(h.files, d.Path)
		if err != nil {
			return err
		}
		if by := used[file]; by != "" {
			log.Warn("a disk that moved stays, another guest names it", "guest", by)
			continue
		}
		by, err := h.dock.InUse(ctx, d.Path, ref)
		if err != nil {
			return err
		}
		if by != "" {
			log.Warn("a disk that moved stays, another guest stands on it", "guest", by)
			continue
		}
		err = h.files.Remove(d.Path, d.Stamp)
		switch {
		case errors.Is(err, fault.Forbidden):
			log.Warn("a disk that moved was replaced by another file, which stays", "error", err)
		case err != nil:
			return err
		default:
			log.Info("removed a disk that moved")
		}
	}
	return nil
}

// usedFiles gives, for every file that a definition here names, the guest. Its keys are
// disks.Which's.
func (h *Host) usedFiles(ctx context.Context) (map[string]string, error) {
	all, err := h.driver.Domains(ctx)
	if err != nil {
		return nil, err
	}
	used := map[string]string{}
	for _, d := range all {
		for _, what := range []driver.Document{driver.Live, driver.Persistent} {
			if what == driver.Persistent && !(d.Active() && d.Persistent) {
				continue // the live document of a stopped domain is its definition
			}
			text, err := h.driver.XML(ctx, d.UUID, what)
			if errors.Is(err, fault.NotFound) {
				continue
			}
			if err != nil {
				return nil, err
			}
			doc, err := parseDocument(text)
			if err = cmp.Or(err, doc.unread); err != nil {
				return nil, wrap(err, "domain %s", d.Name) // it may use any file
			}
			paths := []string{doc.firmware().Variables}
			for _, e := range doc.Devices.Disks {
				paths = append(paths, e.path())
			}
			for _, path := range paths {
				if path == "" {
					continue
				}
				file, err := disks.Which(h.files, path)
				if err != nil {
					return nil, wrap(err, "domain %s", d.Name)
				}
				used[file] = d.Name
			}
		}
	}
	return used, nil
}

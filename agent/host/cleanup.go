package host

import (
	"cmp"
	"context"
	"errors"
	"time"

	"berth/agent/host/fileusers"
	"berth/agent/host/hooks"
	"berth/agent/host/phases"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// cleanUpSource does operation.CleanUpSource.
func (h *Host) cleanUpSource(ctx context.Context, ref migration.Ref) error {
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
	if _, err := witnessed(ctx, h, ref); err != nil {
		return err
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
	if err := endUnmarked(ctx, h, ref); err != nil {
		return err
	}
	if err := h.streams.End(ctx, ref); err != nil {
		return err
	}
	if asked.Found {
		if _, err := h.removeMoved(ctx, ref, asked.Copied); err != nil {
			return err
		}
		if err := h.phases.Run(ctx, ref, phases.Request{
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
	if err := h.streams.Forget(ctx, ref); err != nil {
		return err
	}
	return h.tracker.ForgetMigration(ctx, ref.Migration)
}

// endUnmarked is endSource of an instance whose definition may be without Berth's mark, as it was
// adopted. fault.InDoubt where libvirt does not list it and may only not have loaded it: the guard would
// take it for a new one. What came by a migration has the mark.
func endUnmarked(ctx context.Context, h *Host, ref migration.Ref) error {
	d, exists, err := h.domain(ctx, ref.Instance)
	switch {
	case err != nil:
		return err
	case exists:
		// The folder from which it goes: a repeated call asks whether it is whole.
		err = h.vanished.Whole(ctx, d)
	default:
		err = notLoaded(ctx, h, ref.Instance)
	}
	if err != nil {
		return err
	}
	return h.endSource(ctx, ref)
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
	if err := nothingSavedOfCopy(ctx, h.driver, d); err != nil {
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

// nothingSavedOfCopy refuses a copy that is not the owner while anything is saved of it. The
// remedy of the others, to start it from its saved memory, would make a second one.
func nothingSavedOfCopy(ctx context.Context, by driver.Driver, d driver.Domain) error {
	s, err := by.Saved(ctx, d.UUID)
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if reasons := s.StaleReasons(d.Name); len(reasons) > 0 {
		return fault.Refuse(fault.Forbidden, "", reasons...)
	}
	return nil
}

// removeMoved removes the files of disks that were copied, if nobody else uses them, and
// answers which stay. Their backing files stay: they may be many instances'. It fails where
// the hypervisor does not say who uses what, and is repeated then.
func (h *Host) removeMoved(ctx context.Context, ref migration.Ref, moved []copiedDisk) ([]fileusers.Kept, error) {
	if len(moved) == 0 {
		return nil, nil
	}
	survey, err := h.fileUsers(ctx)
	if err != nil {
		return nil, err
	}
	elsewhere, err := survey.UsedElsewhere(ctx, ref.Instance, pathsOf(moved)...)
	if err != nil {
		return nil, err
	}
	var left []fileusers.Kept
	for _, d := range moved {
		kept, err := h.removeFile(survey, elsewhere, ref, d)
		if err != nil {
			return left, err
		}
		if kept != nil {
			left = append(left, *kept)
		}
	}
	return left, nil
}

// removeFile removes one file of an instance, by its stamp, or answers why it stays.
func (h *Host) removeFile(survey *fileusers.Survey, elsewhere map[string]string, ref migration.Ref, d copiedDisk) (*fileusers.Kept, error) {
	log := h.log.With("instance", ref.Instance, "migration", ref.Migration, "disk", d.Target, "path", d.Path)
	stays := func(k fileusers.Kept) (*fileusers.Kept, error) {
		log.Warn("a disk file stays", "why", k.Reason, "remedy", k.Change)
		return &k, nil
	}
	if there, err := h.files.Exists(d.Path); err != nil || !there {
		return nil, err
	}
	answer, err := survey.Of(d.Path, ref.Instance)
	if err != nil {
		return nil, err
	}
	if answer.Verdict(fileusers.Remove) != fileusers.Go {
		return stays(answer.Kept(d.Target))
	}
	if why := elsewhere[d.Path]; why != "" {
		return stays(fileusers.KeptElsewhere(d.Target, d.Path, why))
	}
	by, err := h.dock.ComparedBy(d.Path, ref)
	if err != nil {
		return nil, err
	}
	if by != "" {
		return stays(fileusers.Kept{Disk: d.Target, Path: d.Path, Reason: "it is below a disk that comes by migration " + by, Change: "berth migration show " + by})
	}
	err = h.files.Remove(d.Path, d.Stamp)
	if errors.Is(err, fault.Forbidden) {
		return stays(fileusers.Kept{Disk: d.Target, Path: d.Path, Reason: "another file has its place: " + err.Error(), Change: "rm " + fault.Quote(d.Path) + " when nobody needs it"})
	}
	if err == nil {
		log.Info("removed a disk file")
	}
	return nil, err
}

func pathsOf(files []copiedDisk) []string {
	var out []string
	for _, f := range files {
		out = append(out, f.Path)
	}
	return out
}

// FilesUsed answers another host's question which of its shared files instances here use.
func (h *Host) FilesUsed(ctx context.Context, instance string, files []fileusers.Question) ([]fileusers.Reply, error) {
	survey, err := h.fileUsers(ctx)
	if err != nil {
		return nil, err
	}
	var out []fileusers.Reply
	for _, q := range files {
		r, err := survey.Asked(q, h.o.Name, instance)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// imageTime is how long reading one image may take while it is asked who uses a file. A
// header is read in milliseconds; one that takes longer is on storage that does not answer.
const imageTime = 20 * time.Second

// fileUsers finds who uses which file on this host.
func (h *Host) fileUsers(ctx context.Context) (*fileusers.Survey, error) {
	return h.surveyOf(ctx, h.driver)
}

// surveyOf is fileUsers, of some definitions alone.
func (h *Host) surveyOf(ctx context.Context, of fileusers.Definitions) (*fileusers.Survey, error) {
	return fileusers.Look(ctx, fileusers.Sources{
		Definitions: of, Files: h.files, Elsewhere: h.o.Elsewhere, SharedDirs: h.o.SharedDirs,
		Pools: func(ctx context.Context) (fileusers.Pools, error) {
			c, err := h.connector(ctx)
			if c == nil {
				return nil, err // no interface around a nil
			}
			return c, err
		},
		Bound: func(ctx context.Context) (context.Context, context.CancelFunc) {
			return h.rt.WithTimeout(ctx, imageTime)
		},
	})
}

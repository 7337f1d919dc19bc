package host

import (
	"context"
	"errors"

	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
)

// Surveyed is a guest as its domain alone tells, for a ledger that is rebuilt.
type Surveyed struct {
	Domain   claims.Domain   // how it stands; never DomainNone
	Paused   bool            // whether by its user or by a migration cannot be told from here
	Instance claims.Instance // its token's epoch is what the document says; 0 for none
	Found    claims.Found
	Marked   bool   // the document has Berth's metadata
	Streams  bool   // a migration job of it is in flight
	Moved    string // the migration that the document says it came by; empty for none
}

// Survey reads every domain, running or not, and changes nothing. A document that
// makes no sense is as one without metadata, and counts for what its domain uses; a
// hypervisor that does not answer for one of them is an error of all: a guest that
// was not counted could be given away.
func (h *Host) Survey(ctx context.Context) ([]Surveyed, error) {
	all, err := h.driver.Domains(ctx)
	if err != nil {
		return nil, wrap(err, "survey guests of %s", h.o.Name)
	}
	var out []Surveyed
	for _, d := range all {
		s, err := h.survey(ctx, d)
		switch fault.KindOf(err) {
		case "":
			out = append(out, s)
		case fault.NotFound: // it has ended meanwhile
		default:
			return nil, wrap(err, "survey guest %s of %s", d.Name, h.o.Name)
		}
	}
	return out, nil
}

func (h *Host) survey(ctx context.Context, d driver.Domain) (Surveyed, error) {
	s := Surveyed{Domain: claims.DomainOff, Paused: d.State == driver.Paused}
	switch {
	case d.HasLeft():
		s.Domain = claims.DomainLeft
	case d.Active() && d.Halfway():
		s.Domain = claims.DomainHalfway
	case d.Active():
		s.Domain = claims.DomainRunning
	}
	if d.Active() && h.migrator != nil {
		switch job, err := h.migrator.Job(ctx, d.UUID); {
		case err == nil:
			s.Streams = inFlight(job)
		case !errors.Is(err, fault.NotFound):
			return s, err
		}
	}
	text, err := h.driver.XML(ctx, d.UUID, driver.Live)
	if err != nil {
		return s, err
	}
	if doc, err := domainxml.Parse(text); err == nil {
		meta, marked, err := doc.Metadata()
		s.Marked = marked
		if err == nil {
			s.Moved = meta.Migration
		}
	}
	if s.Instance, s.Found, _, err = h.read(ctx, d); err != nil {
		// A document that nobody understands is of a guest all the same.
		l := listed(d)
		s.Instance = claims.Instance{UUID: d.UUID, Name: d.Name, Autostart: d.Autostart, ProjectID: h.o.ProjectID, UserID: h.o.UserID}
		s.Instance.Flavor.Name, s.Instance.Flavor.VCPUs, s.Instance.Flavor.MemoryMB = "adopted", l.found.Resources.VCPUs, l.found.Resources.MemoryMB
		s.Found = l.found
		if fault.KindOf(err) == fault.Unavailable {
			return s, err
		}
	}
	s.Instance.Adopted = !s.Marked
	return s, nil
}

// AutostartDone notes that the guests whose wish it is were started in this boot, where
// the record of it was lost: one that its user has stopped since stays so. A record that
// is there is left as it is.
func (h *Host) AutostartDone(ctx context.Context) error {
	var last string
	if found, err := h.tracker.Recall(autostartRef("boot"), &last); err != nil || found {
		return err
	}
	if err := h.tracker.Remember(ctx, autostartRef("left"), []string{}); err != nil {
		return err
	}
	return h.tracker.Remember(ctx, autostartRef("boot"), h.rt.Boot().ID)
}

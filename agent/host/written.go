package host

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"berth/agent/host/disks"
	"berth/agent/host/volumes"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
)

// writtenHere refuses an instance of another host the files of this host that it would write and that no
// domain XML tells of: what instances that are off stand on, and old disks that are kept for an operator.
// What an instance that runs stands on is in its domain XML (admission.Check). It reads the images of
// instances that are off, if the instance writes a disk that is here already.
func writtenHere(ctx context.Context, h *Host, instance string, texts ...string) ([]fault.Reason, error) {
	var written []domainxml.Named
	for _, text := range texts {
		if text == "" {
			continue
		}
		doc, err := domainxml.Parse(text)
		if err != nil {
			return nil, fault.New(fault.Invalid, "%w", err)
		}
		for _, n := range doc.HostNames() {
			if n.Kind == domainxml.NamedVolume {
				pool, volume, _ := strings.Cut(n.Value, "/")
				at, _, err := h.volumePath(ctx, volumes.Disk{Pool: pool, Volume: volume})
				if err != nil || at == "" {
					continue // its pool is not active
				}
				n.Kind, n.Value = domainxml.NamedPath, at
			}
			if n.Kind != domainxml.NamedPath || n.Device != "disk" || !n.Writes || slices.ContainsFunc(written, func(w domainxml.Named) bool { return w.Value == n.Value }) {
				continue
			}
			// What cannot be looked at admission refuses.
			if there, err := h.files.Exists(n.Value); err == nil && there {
				written = append(written, n)
			}
		}
	}
	if len(written) == 0 {
		return nil, nil
	}
	survey, err := h.surveyOf(ctx, offDomains{h.driver})
	if err != nil {
		return nil, err
	}
	old, err := KeptOldDisks(ctx, h)
	if err != nil {
		return nil, err
	}
	var out []fault.Reason
	no := func(n domainxml.Named, how, change string) {
		out = append(out, fault.Reason{Code: "used_by_other", Message: fmt.Sprintf("the %s of the instance is %s, %s", n.What, n.Value, how), Have: n.Value, Change: change})
	}
	for _, n := range written {
		a, err := survey.Of(n.Value, instance)
		if err != nil {
			return nil, err
		}
		for _, u := range a.Users {
			if u.Below {
				no(n, "on which a disk of instance "+u.Name+" of "+h.o.Name+" stands", "virsh domblklist "+fault.Quote(u.Name)+" on "+h.o.Name+" names its disks: qemu-img rebase -p -b '' DISK makes each whole; or give this instance another: virsh edit NAME on its own host")
			}
		}
		file, err := disks.Which(h.files, n.Value)
		if err != nil {
			return nil, err
		}
		for _, o := range old {
			for _, f := range o.Files {
				if kept, err := disks.Which(h.files, f.Path); o.Instance != instance && err == nil && kept == file {
					no(n, "an old disk of instance "+o.Name+", kept on "+h.o.Name+" since it was evacuated to "+o.To, "rm "+fault.Quote(f.Path)+" on "+h.o.Name+" when nobody needs it")
				}
			}
		}
	}
	return out, nil
}

// offDomains are the definitions of a host's domains that do not run.
type offDomains struct{ driver.Driver }

func (o offDomains) Domains(ctx context.Context) ([]driver.Domain, error) {
	all, err := o.Driver.Domains(ctx)
	return slices.DeleteFunc(slices.Clone(all), driver.Domain.Active), err
}

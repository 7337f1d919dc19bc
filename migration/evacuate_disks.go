package migration

import (
	"fmt"
	"slices"

	"berth/internal/fault"
)

// Reason codes of disks that keep a guest from being evacuated.
const (
	ReasonDataLost        = "data_would_be_lost"
	ReasonDiskUnreachable = "disk_unreachable"
)

// FirmwareVariables stands for the file of a guest's firmware variables among its disks: they are
// the guest's own, and without them it forgets what it boots.
const FirmwareVariables = "nvram"

// RebuiltFrom returns what the guest is to be where it stays as it is and its disks may be made from
// an image; nil for no image.
func (g Guest) RebuiltFrom(i *Image) *Wanted {
	if i == nil {
		return nil
	}
	return &Wanted{Flavor: g.Flavor, Resources: g.Resources, Topology: g.Topology, PCIRequests: g.PCIRequests, Image: i}
}

// EvacuateDisks says what a host would do about the disks of a lost guest, as it sees them
// at the same paths. image is what the guest's first disk is made from where its record names
// nothing; nil for none. The reasons speak against it, each with the disk that it is of: a disk
// that can neither be used nor be made, and, unless loss is accepted, one that would be made
// anew and lose what was written. It is a pure function.
func EvacuateDisks(g Guest, views []DiskView, image *Image, acceptLoss bool) (EvacuatedDisks, []fault.Reason) {
	var out EvacuatedDisks
	var reasons []fault.Reason
	first := slices.IndexFunc(g.Disks, func(d Disk) bool { return !d.ReadOnly })
	for i, d := range g.Disks {
		if d.Network || d.Path == "" { // an empty drive has no path
			continue
		}
		shared := slices.ContainsFunc(views, func(v DiskView) bool { return v.Target == d.Target && v.Shared })
		made := d.Image != nil || image != nil && i == first
		switch {
		case shared:
			out.Shared = append(out.Shared, d.Target)
			continue
		case !made:
			reasons = append(reasons, fault.Reason{
				Code: ReasonDiskUnreachable, Message: fmt.Sprintf("disk %s (%s) is not there, and nobody knows from what image it was made", d.Target, d.Path), Have: d.Target,
				Change: "give the host the storage that it lies on, or name an image for the first disk (--image)",
			})
			continue
		}
		out.Made = append(out.Made, d.Target)
		if d.ReadOnly {
			continue // nothing was written
		}
		out.Lost = append(out.Lost, d.Target)
		if !acceptLoss {
			reasons = append(reasons, fault.Reason{
				Code: ReasonDataLost, Message: fmt.Sprintf("disk %s (%s) would be made anew, and what was written to it be lost", d.Target, d.Path), Have: d.Target,
				Change: "give the host the storage that it lies on, or accept the loss (--accept-data-loss)",
			})
		}
	}
	// Without the file libvirt makes one from its template: what the guest had chosen to boot is
	// lost, and keys that were enrolled. That is told and hinders nobody, since a word that
	// accepts it would accept the loss of disks too.
	if slices.ContainsFunc(views, func(v DiskView) bool { return v.Target == FirmwareVariables && !v.Shared }) && g.Variables != "" {
		out.Made = append(out.Made, FirmwareVariables)
	}
	return out, reasons
}

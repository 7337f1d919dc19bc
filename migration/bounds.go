package migration

import "berth/internal/fault"

// MostDisks bounds the disks of one instance that another host may name. Arbitrary: domains have some
// dozens at most, and each disk that is copied is a file that is made and a part of a record.
const MostDisks = 512

// checkDisks refuses more disks than MostDisks, and a target that is named twice; fault.Invalid.
func checkDisks(what string, targets []string) error {
	if len(targets) > MostDisks {
		return fault.New(fault.Invalid, "%s: %d, at most %d", what, len(targets), MostDisks)
	}
	seen := map[string]bool{}
	for _, t := range targets {
		if seen[t] {
			return fault.New(fault.Invalid, "%s: disk %q is named twice", what, t)
		}
		seen[t] = true
	}
	return nil
}

func (g Guest) checkDisks() error {
	var targets []string
	for _, d := range g.Disks {
		targets = append(targets, d.Target)
	}
	return checkDisks("disks of the instance", targets)
}

// Validate refuses lists of disks that no instance has; fault.Invalid.
func (p PreLiveRequest) Validate() error {
	if err := p.Guest.checkDisks(); err != nil {
		return err
	}
	return checkDisks("disks to copy", p.CopyDisks)
}

// Validate refuses lists of disks that no instance has; fault.Invalid.
func (p PrepRequest) Validate() error {
	if err := p.Guest.checkDisks(); err != nil {
		return err
	}
	var grow []string
	for _, g := range p.Wanted.Grow {
		grow = append(grow, g.Target)
	}
	if err := checkDisks("disks to grow", grow); err != nil {
		return err
	}
	return checkDisks("disks to ship", p.CopyDisks)
}

// Validate refuses lists of disks that no instance has; fault.Invalid.
func (e EvacuationRequest) Validate() error { return e.Guest.checkDisks() }

// Validate refuses a list of disks that no instance has; fault.Invalid.
func (s SnapshotRequest) Validate() error { return checkDisks("disks to hold", s.Targets) }

// Validate refuses lists of disks that no instance has; fault.Invalid.
func (c CheckRequest) Validate() error { return c.Guest.checkDisks() }

// Validate refuses lists of disks that no instance has; fault.Invalid.
func (c ClaimRequest) Validate() error { return c.Guest.checkDisks() }

// Validate refuses more disks than an instance has, and one that is named twice; fault.Invalid.
func (v VolumeChanges) Validate() error {
	var files []string
	for _, f := range v.Files {
		files = append(files, f.Target+" "+f.Path) // two disks may stand on one base
	}
	for what, list := range map[string][]string{"disks attached": v.Attached, "disks detached": v.Detached, "files of disks": files} {
		if err := checkDisks(what, list); err != nil {
			return err
		}
	}
	return nil
}

package volumes

import (
	"context"
	"errors"

	"berth/driver"
	"berth/internal/fault"
)

// Paths are files and block devices. One that hosts share is told by what the kernel
// knows of it (disks.Identity), never by a file that one writes and the other looks for.
// Whether it must be copied is the mover's decision.
type Paths struct {
	Files Files
	nothingAttached
}

// Kind implements Volume.
func (Paths) Kind() string { return "path" }

// Serves implements Volume.
func (Paths) Serves(d Disk) bool { return (d.Type == "file" || d.Type == "block") && d.Path != "" }

// Check implements Volume. A path whose identity nobody has told is not looked at.
func (p Paths) Check(_ context.Context, d Disk) ([]fault.Reason, error) {
	if d.Identity == "" {
		return nil, nil
	}
	got, err := p.Files.Identity(d.Path)
	if errors.Is(err, fault.NotFound) || errors.Is(err, fault.Invalid) || err == nil && got != d.Identity {
		return []fault.Reason{{
			Code: "disk_not_shared", Message: "disk " + d.Target + " (" + d.Path + ") is not the file that the guest has", Want: d.Identity, Have: got,
			Change: "mount the same storage on both hosts",
		}}, nil
	}
	return nil, err
}

// Plan implements Volume.
func (Paths) Plan(context.Context, Disk) (*Made, error) { return nil, nil }

// Prepare implements Volume.
func (Paths) Prepare(context.Context, Made) error { return nil }

// Activate implements Volume: a mount that was lost must not start the guest without
// its disk, nor QEMU make a new one.
func (p Paths) Activate(ctx context.Context, d Disk) error {
	there, err := p.Files.Exists(d.Path)
	if err != nil {
		return err
	}
	if !there {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "disk_missing", Message: "disk " + d.Target + " (" + d.Path + ") is not there", Want: d.Path, Change: "mount its storage",
		})
	}
	reasons, err := p.Check(ctx, d)
	if err != nil || len(reasons) == 0 {
		return err
	}
	return fault.Refuse(fault.Forbidden, "", reasons...)
}

// Undo implements Volume.
func (Paths) Undo(context.Context, Made, func(driver.Pool) (bool, error)) error { return nil }

// NetworkDisks are those that QEMU itself reaches over a network (<disk type='network'>):
// rbd, iscsi, nbd and others. The document is all there is: whoever it names must be
// reachable from here, by the same names.
type NetworkDisks struct {
	Files Files
	nothingAttached
}

// Kind implements Volume.
func (NetworkDisks) Kind() string { return "network" }

// Serves implements Volume.
func (NetworkDisks) Serves(d Disk) bool { return d.Type == "network" }

// cephConf is where librados looks for monitors that nobody names (ceph.conf(5)).
const cephConf = "/etc/ceph/ceph.conf"

// Check implements Volume.
func (n NetworkDisks) Check(_ context.Context, d Disk) ([]fault.Reason, error) {
	what := "disk " + d.Target + " (" + d.Protocol + " " + d.Name + ")"
	if d.Protocol == "rbd" && (len(d.Hosts) == 0 || d.Config != "") {
		path := d.Config
		if path == "" {
			path = cephConf
		}
		there, err := n.Files.Exists(path)
		if err != nil || there {
			return nil, err
		}
		return []fault.Reason{{
			Code: "ceph_conf_missing", Message: what + " finds its monitors by " + path + ", which is not there", Want: path, Change: "put the cluster's file there",
		}}, nil
	}
	if len(d.Hosts) == 0 {
		return []fault.Reason{{
			Code: "disk_host_unnamed", Message: what + " names no host", Change: "give it a <host name=''/>",
		}}, nil
	}
	return nil, nil
}

// Plan implements Volume.
func (NetworkDisks) Plan(context.Context, Disk) (*Made, error) { return nil, nil }

// Prepare implements Volume.
func (NetworkDisks) Prepare(context.Context, Made) error { return nil }

// Activate implements Volume.
func (NetworkDisks) Activate(context.Context, Disk) error { return nil }

// Undo implements Volume.
func (NetworkDisks) Undo(context.Context, Made, func(driver.Pool) (bool, error)) error { return nil }

// Package volumes gives a guest that comes to this host what its disks stand on, and
// takes back what was made ready for one that did not come.
//
// libvirt opens a guest's disks when its domain starts. What is left is to know before
// whether this host can (Check), to bring up what they are reached by (Prepare), to look
// once more before the guest starts (Activate), and to leave this host as it was found
// (Undo). Files that are made or copied for a guest are package disks' matter, volumes
// that live elsewhere and must be attached, Cinder's before all, the operator's hooks'.
//
// Before a guest comes nobody has its disks open here: what is made ready is a way to
// them. When it is off and about to leave, nothing of it may keep them (Attached, Take,
// Restore):
//
//	kind                    while the guest is off          Take
//	file, block device      nothing: QEMU had it open       nothing here; who else has it open for
//	                                                        writing is its host's to find out
//	network disk            nothing: QEMU's own connection  nothing
//	secret                  libvirt's, for every guest      nothing
//	pool (iscsi: a session  active: it serves others too    one that Berth has started since the
//	with the target; …)                                     boot is stopped, where no guest that is
//	                                                        defined here has a disk in it
//
// It reads guests' documents, the identity of files, libvirt's storage pools and
// secrets. It alone starts and stops pools, those only that it has started itself. Each
// verb is safe to repeat.
package volumes

import (
	"context"
	"encoding/xml"
	"slices"

	"berth/driver"
	"berth/internal/fault"
)

// Disk is one disk of a guest, as its document has it.
type Disk struct {
	Target string // vda
	Type   string // file, block, network, volume, …
	Path   string // of a file or a device

	Pool, Volume string // of libvirt

	Protocol string // of a network disk: rbd, iscsi, nbd, …
	Name     string // of its image there
	Hosts    []string
	Config   string // file that names them instead

	Format    string // raw, qcow2; empty where the document leaves it to libvirt
	ReadOnly  bool   // also every CD-ROM
	Shareable bool   // several guests may write it

	Secrets []driver.SecretRef // that libvirt opens it with

	// Identity is what the guest's present host says that the file is (disks.Identity);
	// empty where it did not, or the file is not shared.
	Identity string
}

type source struct {
	File     string `xml:"file,attr"`
	Dev      string `xml:"dev,attr"`
	Pool     string `xml:"pool,attr"`
	Volume   string `xml:"volume,attr"`
	Protocol string `xml:"protocol,attr"`
	Name     string `xml:"name,attr"`
	Hosts    []struct {
		Name   string `xml:"name,attr"`
		Socket string `xml:"socket,attr"`
	} `xml:"host"`
	Config struct {
		File string `xml:"file,attr"`
	} `xml:"config"`
	Auth       auth       `xml:"auth"`
	Encryption encryption `xml:"encryption"`
}

type auth struct {
	Secrets []secret `xml:"secret"`
}

type encryption struct {
	Secrets []secret `xml:"secret"`
}

type secret struct {
	Type  string `xml:"type,attr"`
	UUID  string `xml:"uuid,attr"`
	Usage string `xml:"usage,attr"`
}

// Of reads the disks of a guest's document.
func Of(document string) ([]Disk, error) {
	var doc struct {
		Disks []struct {
			Type      string    `xml:"type,attr"`
			Device    string    `xml:"device,attr"`
			ReadOnly  *struct{} `xml:"readonly"`
			Shareable *struct{} `xml:"shareable"`
			Source    source    `xml:"source"`
			Driver    struct {
				Type string `xml:"type,attr"`
			} `xml:"driver"`
			Auth       auth       `xml:"auth"` // where libvirt before 3.9 has it
			Encryption encryption `xml:"encryption"`
			Target     struct {
				Dev string `xml:"dev,attr"`
			} `xml:"target"`
		} `xml:"devices>disk"`
	}
	if err := xml.Unmarshal([]byte(document), &doc); err != nil {
		return nil, fault.New(fault.Invalid, "read the disks of a domain document: %w", err)
	}
	var out []Disk
	for _, e := range doc.Disks {
		d := Disk{
			Target: e.Target.Dev, Type: e.Type, Pool: e.Source.Pool, Volume: e.Source.Volume,
			Protocol: e.Source.Protocol, Name: e.Source.Name, Config: e.Source.Config.File,
			Format: e.Driver.Type, ReadOnly: e.ReadOnly != nil || e.Device == "cdrom", Shareable: e.Shareable != nil,
		}
		if d.Path = e.Source.File; e.Type == "block" {
			d.Path = e.Source.Dev
		}
		for _, h := range e.Source.Hosts {
			if h.Name != "" {
				d.Hosts = append(d.Hosts, h.Name)
			} else if h.Socket != "" {
				d.Hosts = append(d.Hosts, h.Socket)
			}
		}
		for _, s := range slices.Concat(e.Source.Auth.Secrets, e.Auth.Secrets) {
			d.Secrets = append(d.Secrets, driver.SecretRef{UUID: s.UUID, Type: s.Type, Usage: s.Usage})
		}
		for _, s := range slices.Concat(e.Source.Encryption.Secrets, e.Encryption.Secrets) {
			// Its type is passphrase, whatever the secret itself is for.
			d.Secrets = append(d.Secrets, driver.SecretRef{UUID: s.UUID, Type: "volume", Usage: s.Usage})
		}
		out = append(out, d)
	}
	return out, nil
}

// Made is what there was on this host before it was prepared for one disk. It is on
// record before Prepare.
type Made struct {
	Kind   string `json:"kind"` // of Volume.Kind
	Target string `json:"target"`
	Pool   string `json:"pool,omitempty"`
	Volume string `json:"volume,omitempty"`
	// Inactive: the pool was not active, and is to be so again.
	Inactive bool `json:"inactive,omitempty"`
}

// Volume is one kind of what disks stand on.
type Volume interface {
	// Kind is its name, in records.
	Kind() string

	// Serves reports whether a disk is of this kind. It may be of several.
	Serves(d Disk) bool

	// Check gives every reason why this host cannot give the disk to the guest. It
	// changes nothing. An error says that it could not be found out.
	Check(ctx context.Context, d Disk) ([]fault.Reason, error)

	// Plan looks what is there for the disk; nil when there is nothing to prepare or
	// undo. It changes nothing.
	Plan(ctx context.Context, d Disk) (*Made, error)

	// Prepare makes ready what was planned, before the guest's domain is started.
	Prepare(ctx context.Context, m Made) error

	// Activate is called when the guest is this host's and no other's, before it starts
	// here where it comes shut off: what its disk stands on must be there now.
	Activate(ctx context.Context, d Disk) error

	// Undo leaves this host as the plan found it, unless it is in use by another guest
	// meanwhile (inUse).
	Undo(ctx context.Context, m Made, inUse func(driver.Pool) (bool, error)) error

	// Attached looks what of the disk this host still has for the guest while that is off,
	// and could give up; nil for nothing. It changes nothing.
	Attached(ctx context.Context, d Disk) (*Taken, error)

	// Take gives that up, unless another guest here may want it (inUse).
	Take(ctx context.Context, x Taken, inUse func(driver.Pool) (bool, error)) error

	// Restore is the undo of Take, also of a half-done one.
	Restore(ctx context.Context, x Taken) error
}

// Taken is what is given up for one disk while its guest is off. It is on record before
// Take.
type Taken struct {
	Kind   string `json:"kind"` // of Volume.Kind
	Target string `json:"target"`
	Pool   string `json:"pool"`
}

// nothingAttached is of what QEMU alone has of a disk: with its process that is gone.
type nothingAttached struct{}

// Attached implements Volume.
func (nothingAttached) Attached(context.Context, Disk) (*Taken, error) { return nil, nil }

// Take implements Volume.
func (nothingAttached) Take(context.Context, Taken, func(driver.Pool) (bool, error)) error {
	return nil
}

// Restore implements Volume.
func (nothingAttached) Restore(context.Context, Taken) error { return nil }

// All are the kinds that this package knows. libvirt is nil where the hypervisor has
// neither pools nor secrets, started where nobody notes which pools were started.
func All(libvirt Lookup, files Files, started Started) []Volume {
	out := []Volume{Paths{Files: files}, NetworkDisks{Files: files}}
	if libvirt != nil {
		out = append(out, Pools{Lookup: libvirt, Started: started}, Secrets{Lookup: libvirt})
	}
	return out
}

// Started notes the pools that this package has started on this host since it was booted.
type Started interface {
	Note(ctx context.Context, pool string) error
	Drop(ctx context.Context, pool string) error
	Has(pool string) (bool, error)
}

// Lookup reaches libvirt's storage pools and secrets (driver.Connector).
type Lookup interface {
	Pool(ctx context.Context, name string) (driver.Pool, error)
	Volume(ctx context.Context, pool, name string) (driver.Volume, error)
	OpenPool(ctx context.Context, name string) error
	ClosePool(ctx context.Context, name string) error
	Secret(ctx context.Context, s driver.SecretRef) error
}

// Files are this host's (disks.Files).
type Files interface {
	Exists(path string) (bool, error)
	Identity(path string) (string, error)
}
